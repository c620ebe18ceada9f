// What belongs to no one cluster, or to be seen across them: upgrades, autoscaling, hosts. Each a tree of its own.

import { h } from "./dom.js";
import { ask } from "./source.js";
import { detail, loadObject } from "./detail.js";
import { clusterAt } from "./fleet.js";
import { empty, keyOf, mark, objectAt, progress, search, state, unreadable, versionOf } from "./parts.js";
import { holds, keyOfNode, nodeOf, tree } from "./tree.js";
import { clock, plural, STATES } from "./words.js";

export const VIEWS = {
  upgrades: { part: "upgrade", title: "Upgrades", none: ["Nothing is being upgraded", "Clusters on their way to another version, and the upgrades of their nodes in waves, appear here."] },
  autoscaling: { part: "autoscaling", title: "Autoscaling", none: ["No NodePools", "NodePools and their NodeClaims appear here once there are any."] },
  hosts: { part: "host", title: "Hosts", none: ["No hosts", "Edge hosts appear here once their agents have joined."] },
};

export const title = (route) => VIEWS[route.view].title;

export async function load(route, signal) {
  const [found, object] = await Promise.all([ask("kinds", { part: VIEWS[route.view].part }, signal), loadObject(route, signal)]);
  return { ...found, object };
}

export function spoken(data) {
  const all = new Map();
  const walk = (node) => {
    all.set(keyOfNode(node), [node.count > 1 ? `${node.count} ${node.kind}s` : `${node.kind} ${node.name}`, node.state, node.reason]);
    (node.children ?? []).forEach(walk);
  };
  data.nodes.forEach(walk);
  return all;
}

export function draw(data, context) {
  const { route, navigate, ui, now } = context;
  const view = VIEWS[route.view];
  const set = (change) => navigate(route.path, { ...route.query, ...change }, { replace: true });
  const moving = (data.rows ?? []).filter((row) => row.progress || row.desiredVersion);
  const counts = STATES.map((state) => [state, data.nodes.filter((node) => node.state === state).length]).filter(([, count]) => count);
  const head = h("div", { class: "page-head" }, h("h1", {}, view.title), h("p", { class: "soft tally" }, counts.map(([state, count]) => h("span", { key: state, class: `state is-${state}` }, mark({ state }, 15), `${count} ${state}`))));
  if (!data.nodes.length && !moving.length) return [head, unreadable(data.unreadable), empty(...view.none)];
  // What is alike has no address of its own.
  const selected = !route.query.o && nodeOf(data.nodes, ui.selected)?.count > 1 ? ui.selected : route.query.o;
  const select = (node) => {
    ui.selected = keyOfNode(node);
    if (node.count > 1) {
      set({ o: "" });
      ui.draw();
    } else set({ o: keyOf(node) });
  };
  return [
    head,
    unreadable(data.unreadable),
    moving.length ? h("section", { "aria-label": "Clusters on their way" }, h("h2", { class: "over" }, `${plural(moving.length, "cluster")} on ${moving.length === 1 ? "its" : "their"} way`), h("ul", { class: "cards" }, moving.slice(0, 30).map((row) => card(row, now)))) : null,
    route.view === "autoscaling" && data.nodes.some((node) => node.kind === "NodePool") ? cost(ui) : null,
    route.view === "upgrades" ? [clusterUpgrades(data.nodes, route, now), nodeUpgrades(data.nodes, route)] : null,
    data.nodes.length
      ? h(
          "div",
          { class: "split" },
          h(
            "section",
            { class: "panel", "aria-label": view.title },
            h("div", { class: "section-head" }, h("h2", {}, "Objects"), search(ui.q ?? "", `Search ${view.title.toLowerCase()}`, (value) => ((ui.q = value), ui.draw()))),
            tree({ roots: data.nodes, label: view.title, ui, now, selected, select, matches: holds(ui.q ?? ""), changed: ui.changed }),
          ),
          detail(nodeOf(data.nodes, selected), data.object, context),
        )
      : null,
  ];
}

/// What the nodes cost, and the least that any nodes for their pods would. The manager is asked when somebody wants to know.
function cost(ui) {
  const { known } = (ui.cost ??= {});
  const reckon = async () => {
    ui.cost.known = { asking: true };
    ui.draw();
    try {
      const answer = await ask("cost");
      ui.cost.known = { at: answer.at, ...answer.answer };
    } catch (error) {
      ui.cost.known = { why: error.message };
    }
    ui.draw();
  };
  return h(
    "section",
    { class: "panel cost", "aria-label": "Cost" },
    h("div", { class: "section-head" }, h("h2", {}, "What the nodes cost"), h("button", { type: "button", disabled: Boolean(known?.asking), on: { click: reckon } }, known?.asking ? "Asking the autoscaler" : known ? "Ask again" : "Ask the autoscaler")),
    known && !known.asking ? h("div", { role: "status" }, known.cost ? costs(known.cost) : h("p", { class: "message" }, known.why), known.at ? h("p", { class: "soft" }, "as of ", clock(known.at), ", per hour") : null) : h("p", { class: "soft" }, "By NodePool, beside the least that any nodes for the same pods would cost."),
  );
}

const price = (value) => value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 4 });

function costs(cost) {
  const most = Math.max(cost.perHour, cost.bound ?? 0, 1e-9);
  const bar = (value, kind) => h("span", { class: `share ${kind}`, "aria-hidden": "true" }, h("span", { vars: { share: `${(value / most) * 100}%` } }));
  const over = cost.bound > 0 ? `${(cost.perHour / cost.bound).toFixed(2)} times the least` : null;
  return h(
    "table",
    { class: "costs" },
    h("caption", { class: "unseen" }, "What the nodes of each NodePool cost per hour"),
    h("thead", {}, h("tr", {}, ["NodePool", "Nodes", "Per hour", ""].map((label, index) => h("th", { key: `h${index}`, scope: "col" }, label || h("span", { class: "unseen" }, "Share"))))),
    h(
      "tbody",
      {},
      cost.pools.map((pool) => h("tr", { key: pool.name }, h("th", { scope: "row" }, pool.name), h("td", { class: "number" }, pool.nodes), h("td", { class: "number" }, price(pool.perHour), pool.withoutPrice ? h("span", { class: "soft" }, ` and ${plural(pool.withoutPrice, "node")} without a price`) : null), h("td", {}, bar(pool.perHour, "")))),
      h("tr", { key: "/all", class: "all" }, h("th", { scope: "row" }, "All"), h("td", { class: "number" }, cost.pools.reduce((all, pool) => all + pool.nodes, 0)), h("td", { class: "number" }, h("strong", {}, price(cost.perHour)), over ? h("span", { class: "soft" }, ` ${over}`) : null), h("td", {}, bar(cost.perHour, ""))),
      h("tr", { key: "/least" }, h("th", { scope: "row" }, `The least for ${plural(cost.pods, "pod")}`), h("td", {}), h("td", { class: "number" }, cost.bound == null ? h("span", { class: "soft" }, "not known: a price is missing, or the pods are too many") : price(cost.bound)), h("td", {}, cost.bound == null ? null : bar(cost.bound, "least"))),
    ),
  );
}

const STAGES = [
  ["ControlPlane", "control plane"],
  ["Canary", "canary"],
  ["Workers", "workers"],
  ["Done", "done"],
];

/// The upgrades of whole clusters, with the stage that each is at.
function clusterUpgrades(nodes, route, now) {
  const all = nodes.filter((node) => node.kind === "ClusterUpgrade" && node.count === undefined);
  if (!all.length) return null;
  return h(
    "section",
    { "aria-label": "Upgrades of clusters" },
    h("h2", { class: "over" }, plural(all.length, "ClusterUpgrade")),
    h(
      "ul",
      { class: "cards" },
      all.slice(0, 30).map((node) => {
        const at = STAGES.findIndex(([phase]) => phase === node.facts?.phase);
        return h(
          "li",
          { key: keyOf(node), class: "card" },
          h("p", { class: "card-head" }, h("a", { href: objectAt(route, node), class: "whole" }, node.name), state(node)),
          h("p", { class: "soft" }, node.namespace, node.version ? ` · to ${node.version}` : null, node.facts?.stop && node.facts.stop !== node.version ? ` · now ${node.facts.stop}` : null),
          h(
            "ol",
            { class: "stages" },
            STAGES.map(([phase, label], index) => h("li", { key: phase, class: at < 0 ? "" : index < at || phase === node.facts?.phase && phase === "Done" ? "done" : index === at ? "at" : "", "aria-current": index === at ? "step" : null }, label)),
          ),
          progress(node.progress, now),
          node.state === "ready" ? null : h("p", { class: "message" }, [node.reason, node.message].filter(Boolean).join(": ")),
        );
      }),
    ),
  );
}

const LANES = [
  ["Waiting", ["Pending"]],
  ["Getting ready", ["Caching", "Preparing", "Prepared"]],
  ["Draining", ["Draining"]],
  ["Rebooting", ["Rebooting"]],
  ["Verifying", ["Verifying"]],
  ["Done", ["Done"]],
];
/// Of a lane these are drawn one by one.
const IN_LANE = 8;

/// The upgrades of single nodes by their step: whose wave has not come waits on the left, who is done is on the right.
function nodeUpgrades(nodes, route) {
  const all = nodes.filter((node) => node.kind === "NodeUpgrade");
  if (!all.length) return null;
  const known = LANES.flatMap(([, phases]) => phases);
  const other = all.filter((node) => !known.includes(node.facts?.phase ?? "Pending"));
  const lanes = [...LANES.map(([title, phases]) => [title, all.filter((node) => phases.includes(node.facts?.phase ?? "Pending"))]), ...(other.length ? [["Ended otherwise", other]] : [])];
  return h(
    "section",
    { class: "panel board", "aria-label": "Upgrades of nodes by step" },
    h("div", { class: "section-head" }, h("h2", {}, "Nodes by step"), h("p", { class: "soft" }, plural(all.length, "NodeUpgrade"))),
    h(
      "ol",
      { class: "lanes", tabindex: "0", "aria-label": "Steps" },
      lanes.map(([title, within]) =>
        h(
          "li",
          { key: title, class: within.length ? "" : "none" },
          h("h3", {}, title, h("span", { class: "number" }, within.length)),
          h("ul", {}, within.slice(0, IN_LANE).map((node) => h("li", { key: keyOf(node), class: `is-${node.state}` }, mark(node, 14), h("div", {}, h("a", { href: objectAt(route, node) }, node.facts?.machine ?? node.name), said(node))))),
          within.length > IN_LANE ? h("p", { class: "soft" }, `and ${within.length - IN_LANE} more`) : null,
        ),
      ),
    ),
  );
}

/// What holds it up in few words: its wave, a policy, a budget.
function said(node) {
  const text = node.state === "ready" ? "" : node.message || node.reason || "";
  return text ? h("span", { class: "soft" }, text) : null;
}

function card(row, now) {
  return h("li", { key: `${row.namespace}/${row.name}`, class: "card" }, h("p", { class: "card-head" }, h("a", { href: clusterAt(row), class: "whole" }, row.name), state(row)), h("p", { class: "soft" }, row.namespace, " · ", versionOf(row)), progress(row.progress, now));
}
