// What belongs to no one cluster, or to be seen across them: upgrades, autoscaling, hosts. Each a tree of its own.

import { h } from "./dom.js";
import { ask } from "./source.js";
import { detail, loadObject } from "./detail.js";
import { clusterAt } from "./fleet.js";
import { empty, keyOf, mark, progress, search, state, unreadable, versionOf } from "./parts.js";
import { holds, keyOfNode, nodeOf, tree } from "./tree.js";
import { plural, STATES } from "./words.js";

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

function card(row, now) {
  return h("li", { key: `${row.namespace}/${row.name}`, class: "card" }, h("p", { class: "card-head" }, h("a", { href: clusterAt(row), class: "whole" }, row.name), state(row)), h("p", { class: "soft" }, row.namespace, " · ", versionOf(row)), progress(row.progress, now));
}
