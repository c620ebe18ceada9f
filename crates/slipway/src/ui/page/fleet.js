// All clusters: how many are how, and each on a row, what needs somebody first.

import { h } from "./dom.js";
import { ask } from "./source.js";
import { empty, mark, progress, search, state, unreadable, versionOf } from "./parts.js";
import { left, MEANINGS, plural, span, STATES } from "./words.js";

const PAGE = 200;
const COLUMNS = [
  ["state", "State"],
  ["name", "Cluster"],
  ["version", "Version"],
  ["machines", "Machines"],
  ["progress", "What goes on"],
  ["age", "Age"],
];
const BADNESS = Object.fromEntries(STATES.map((state, index) => [state, index]));

export const title = () => "Fleet";

export const load = (_, signal) => ask("fleet", {}, signal);

export const spoken = (data) => new Map(data.fleet.rows.map((row) => [`${row.namespace}/${row.name}`, [`Cluster ${row.name}`, row.state]]));

export function draw(data, { route, navigate, ui, now }) {
  const { rows, rollUp } = data.fleet;
  const { q = "", state: states = "", ns = "", infra = "", sort = "state" } = route.query;
  const chosen = new Set(states.split(",").filter(Boolean));
  const set = (change) => navigate(route.path, { ...route.query, ...change }, { replace: true });
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (row) =>
    (!ns || row.namespace === ns) &&
    (!infra || row.infrastructure === infra) &&
    words.every((word) => [row.name, row.namespace, row.version, row.desiredVersion, row.infrastructure, row.controlPlane, row.class, row.reason, row.message].some((text) => text?.toLowerCase().includes(word)));
  const matching = rows.filter(matches);
  const seen = sorted(matching.filter((row) => !chosen.size || chosen.has(row.state)), sort);
  const shown = seen.slice(0, ui.limit ?? PAGE);
  if (!rows.length) {
    const hidden = data.unreadable?.some((one) => one.kind === "Cluster");
    return [
      head(data),
      unreadable(data.unreadable),
      hidden ? empty("You may not list Clusters", "Ask for the right to list clusters.cluster.x-k8s.io, or start with --namespace for one where you have it.") : empty("No clusters yet", "When a Cluster is created, it appears here by itself."),
    ];
  }
  return [
    head(data),
    roll(matching, rollUp, chosen, (state) => {
      if (!chosen.delete(state)) chosen.add(state);
      set({ state: [...chosen].join(",") });
    }),
    h(
      "div",
      { class: "filters", role: "search" },
      search(q, "Search clusters", (value) => set({ q: value })),
      choice("Namespace", "All namespaces", ns, rows.map((row) => row.namespace), (value) => set({ ns: value })),
      choice("Infrastructure", "All infrastructure", infra, rows.map((row) => row.infrastructure).filter(Boolean), (value) => set({ infra: value })),
      q || ns || infra || chosen.size ? h("button", { type: "button", class: "quiet", on: { click: () => set({ q: "", ns: "", infra: "", state: "" }) } }, "Clear") : null,
      h("span", { class: "soft count", role: "status" }, seen.length === rows.length ? plural(rows.length, "cluster") : `${seen.length.toLocaleString("en")} of ${plural(rows.length, "cluster")}`),
    ),
    unreadable(data.unreadable),
    seen.length
      ? h(
          "div",
          { class: "table-frame" },
          h(
            "table",
            { class: "fleet" },
            h("caption", { class: "unseen" }, "Clusters, sorted by ", sort),
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                COLUMNS.map(([key, label]) =>
                  h("th", { key, scope: "col", class: `c-${key}`, "aria-sort": sort === key ? "ascending" : null }, h("button", { type: "button", on: { click: () => set({ sort: key }) } }, label, h("span", { class: "sorted", "aria-hidden": "true" }, sort === key ? " ↓" : ""))),
                ),
              ),
            ),
            h("tbody", {}, shown.map((row) => line(row, now, ui.changed))),
          ),
          seen.length > shown.length ? h("button", { type: "button", class: "more", on: { click: () => ((ui.limit = (ui.limit ?? PAGE) + PAGE), ui.draw()) } }, `Show ${Math.min(PAGE, seen.length - shown.length)} more of ${seen.length - shown.length}`) : null,
        )
      : h("p", { class: "soft nothing" }, "No cluster matches."),
  ];
}

function head(data) {
  const machines = data.fleet.rollUp.machines;
  return h(
    "div",
    { class: "page-head" },
    h("h1", {}, "Fleet"),
    machines.desired ? h("p", { class: "soft" }, h("strong", { class: "number" }, machines.ready.toLocaleString("en")), ` of ${machines.desired.toLocaleString("en")} machines ready`) : null,
  );
}

function roll(rows, rollUp, chosen, toggle) {
  const counts = Object.fromEntries(STATES.map((state) => [state, rows.filter((row) => row.state === state).length]));
  const total = Math.max(rows.length, 1);
  return h(
    "section",
    { class: "roll-up", "aria-label": "How the clusters are" },
    h("div", { class: "share", "aria-hidden": "true" }, [...STATES].reverse().map((state) => (counts[state] ? h("span", { key: state, class: `is-${state}`, vars: { share: counts[state] / total } }) : null))),
    h(
      "div",
      { class: "tiles", role: "group", "aria-label": "Show only" },
      STATES.map((state) =>
        h(
          "button",
          { key: state, type: "button", class: `tile is-${state}${counts[state] ? "" : " none"}`, "aria-pressed": String(chosen.has(state)), title: MEANINGS[state], on: { click: () => toggle(state) } },
          h("span", { class: "figure number" }, counts[state].toLocaleString("en")),
          h("span", { class: "word" }, mark({ state }, 16), state),
        ),
      ),
    ),
    rollUp.paused ? h("p", { class: "soft" }, mark({ state: "ready", paused: true }, 14), ` ${plural(rollUp.paused, "cluster")} paused`) : null,
  );
}

function choice(label, all, value, values, change) {
  const known = [...new Set(values)].sort();
  if (known.length < 2 && !value) return null;
  return h("select", { "aria-label": label, value, on: { change: (event) => change(event.target.value) } }, [["", all], ...known.map((one) => [one, one])].map(([one, text]) => h("option", { key: `o${one}`, value: one, selected: one === value }, text)));
}

function sorted(rows, by) {
  const rank = {
    state: (row) => [BADNESS[row.state], row.overdue ? 0 : 1, row.progress ? 0 : 1],
    name: () => [],
    version: (row) => [row.version ?? "~"],
    machines: (row) => [-(row.workerMachines.desired + row.controlPlaneMachines.desired)],
    progress: (row) => [row.progress ? 0 : 1, row.progress?.eta?.seconds ?? Infinity],
    age: (row) => [row.ageSeconds ?? Infinity],
  }[by] ?? (() => []);
  const key = (row) => [...rank(row), row.name, row.namespace];
  return rows
    .map((row) => [key(row), row])
    .sort(([one], [other]) => {
      for (let index = 0; index < one.length; index += 1) {
        if (one[index] < other[index]) return -1;
        if (one[index] > other[index]) return 1;
      }
      return 0;
    })
    .map(([, row]) => row);
}

export const clusterAt = (row) => `#/cluster/${encodeURIComponent(row.namespace ?? "")}/${encodeURIComponent(row.name)}`;

function line(row, now, changed) {
  const key = `${row.namespace}/${row.name}`;
  const rest = left(row.progress?.eta, now);
  const said = row.state === "ready" ? "" : [row.reason, row.message].filter(Boolean).join(": ");
  const { controlPlaneMachines: servers, workerMachines: workers } = row;
  return h(
    "tr",
    { key, class: `is-${row.state}${changed?.has(key) ? " changed" : ""}` },
    h("td", { class: "c-state" }, state(row)),
    h("td", { class: "c-name" }, h("a", { href: clusterAt(row), class: "whole" }, row.name), h("span", { class: "soft under" }, [row.namespace, short(row.infrastructure)].filter(Boolean).join(" · "))),
    h("td", { class: "c-version" }, versionOf(row)),
    h("td", { class: "c-machines number" }, servers.desired ? count("control plane", servers) : null, workers.desired ? count("workers", workers) : null, !servers.desired && !workers.desired ? h("span", { class: "soft" }, "–") : null),
    h(
      "td",
      { class: "c-progress" },
      row.progress ? h("div", { class: "inline-progress" }, progress(row.progress, now, { words: false }), h("span", { class: "soft" }, [row.progress.text, rest?.short].filter(Boolean).join(" · "))) : null,
      said ? h("span", { class: "said" }, said) : null,
    ),
    h("td", { class: "c-age number soft" }, row.ageSeconds == null ? "" : span(row.ageSeconds)),
  );
}

const short = (kind) => (kind ?? "").replace(/Cluster$/, "");

function count(label, machines) {
  const lacks = machines.ready < machines.desired;
  return h("span", { class: `machines${lacks ? " lacks" : ""}`, title: label }, `${machines.ready}/${machines.desired}`, h("span", { class: "soft" }, label === "workers" ? " workers" : " control plane"));
}
