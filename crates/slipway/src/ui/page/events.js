// What happened lately in the whole fleet.

import { h } from "./dom.js";
import { ask } from "./source.js";
import { detail, loadObject } from "./detail.js";
import { empty, search, unreadable } from "./parts.js";
import { timeline } from "./timeline.js";

export const title = () => "Events";

export async function load(route, signal) {
  const [found, object] = await Promise.all([ask("events", {}, signal), loadObject(route, signal)]);
  return { ...found, object };
}

export const spoken = () => new Map();

export function draw(data, context) {
  const { route, ui, now } = context;
  const words = (ui.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (entry) => words.every((word) => [entry.object.kind, entry.object.name, entry.object.namespace, entry.title, entry.text].some((text) => text?.toLowerCase().includes(word)));
  const entries = data.timeline.entries.filter((entry) => (!ui.warnings || entry.warning) && matches(entry));
  return [
    h("div", { class: "page-head" }, h("h1", {}, "Events")),
    unreadable(data.unreadable),
    h(
      "div",
      { class: "filters", role: "search" },
      search(ui.q ?? "", "Search events", (value) => ((ui.q = value), ui.draw())),
      h("div", { class: "choices" }, h("button", { type: "button", "aria-pressed": String(Boolean(ui.warnings)), on: { click: () => ((ui.warnings = !ui.warnings), ui.draw()) } }, "Warnings only")),
    ),
    data.timeline.entries.length
      ? h("div", { class: route.query.o ? "split" : "" }, timeline({ entries, now, route, ui: ui.timeline, title: "What happened" }), route.query.o ? detail(data.object?.node, data.object, context) : null)
      : empty("No events", "The API server keeps events for an hour, as a rule."),
  ];
}
