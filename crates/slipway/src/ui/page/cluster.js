// One cluster: how far it is, why it is not ready, its tree with what is selected beside it, and what happened.

import { h } from "./dom.js";
import { ask } from "./source.js";
import { detail, loadObject } from "./detail.js";
import { keyOf, progress, search, state, unreadable, versionOf } from "./parts.js";
import { timeline } from "./timeline.js";
import { holds, keyOfNode, nodeOf, tree } from "./tree.js";
import { why } from "./why.js";
import { span } from "./words.js";

export const title = (route) => route.parts[1] ?? "Cluster";

export async function load(route, signal) {
  const [namespace, name] = route.parts;
  const [cluster, object] = await Promise.all([ask("cluster", { namespace, name, ...(route.query.all ? { all: "true" } : {}) }, signal), loadObject(route, signal)]);
  return { ...cluster, object };
}

export function spoken(data) {
  const all = new Map();
  const walk = (node) => {
    all.set(keyOfNode(node), [node.count > 1 ? `${node.count} ${node.kind}s` : `${node.kind} ${node.name}`, node.state, node.reason]);
    (node.children ?? []).forEach(walk);
  };
  walk(data.tree.root);
  return all;
}

export function draw(data, context) {
  const { route, navigate, ui, now } = context;
  const { root } = data.tree;
  const set = (change) => navigate(route.path, { ...route.query, ...change }, { replace: true });
  // What is alike has no address of its own.
  const selected = !route.query.o && nodeOf([root], ui.selected)?.count > 1 ? ui.selected : route.query.o;
  const select = (node) => {
    ui.selected = keyOfNode(node);
    if (node.count > 1) {
      set({ o: "" });
      ui.draw();
    } else set({ o: keyOf(node) });
  };
  const node = nodeOf([root], selected);
  return [
    h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: "#/" }, "Fleet"), h("span", { "aria-hidden": "true" }, "/"), root.namespace ? h("a", { href: `#/?ns=${encodeURIComponent(root.namespace)}` }, root.namespace) : null),
    h(
      "div",
      { class: "page-head cluster-head" },
      h("h1", {}, root.name),
      state(root, "big"),
      h("p", { class: "facts soft" }, versionOf(root) ?? versionOf(data.row ?? {}), root.ageSeconds != null ? h("span", {}, `age ${span(root.ageSeconds)}`) : null, data.row?.infrastructure ? h("span", {}, data.row.infrastructure) : null, data.row?.class ? h("span", {}, `class ${data.row.class}`) : null),
    ),
    data.row?.progress ? progress(data.row.progress, now) : null,
    why(data.explanation, { ...context }),
    unreadable(data.unreadable),
    h(
      "div",
      { class: "split" },
      h(
        "section",
        { class: "panel", "aria-label": "Tree" },
        h(
          "div",
          { class: "section-head" },
          h("h2", {}, "Objects"),
          search(ui.q ?? "", "Search this cluster", (value) => ((ui.q = value), ui.draw())),
          h(
            "div",
            { class: "choices", role: "group", "aria-label": "How much is shown" },
            h("button", { type: "button", "aria-pressed": String(!route.query.all), on: { click: () => set({ all: "" }) } }, "Noteworthy"),
            h("button", { type: "button", "aria-pressed": String(Boolean(route.query.all)), on: { click: () => set({ all: "1" }) } }, "Everything"),
          ),
        ),
        tree({ roots: [root], label: `Objects of cluster ${root.name}`, ui, now, selected, select, matches: holds(ui.q ?? ""), changed: ui.changed }),
      ),
      detail(node, data.object, { ...context, select: (key) => set({ o: key }) }),
    ),
    timeline({ entries: data.timeline.entries, now, route, ui: ui.timeline }),
  ];
}
