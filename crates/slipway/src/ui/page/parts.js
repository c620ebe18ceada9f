// The small things that all views are made of: marks, progress, buttons, notes.

import { h } from "./dom.js";
import { keyOf, left, MEANINGS, name, since, whole } from "./words.js";

/// A mark for a state: each has a shape of its own, so that colour is never the only difference.
export function mark(one, size = 18) {
  const word = wordOf(one);
  const shapes = {
    ready: [h("circle", { cx: 9, cy: 9, r: 7.5, class: "fill" }), h("path", { d: "M5.6 9.3l2.3 2.3 4.5-4.9", class: "cut" })],
    progressing: [h("circle", { cx: 9, cy: 9, r: 6.5, class: "faint" }), h("path", { d: "M9 2.5a6.5 6.5 0 0 1 6.5 6.5", class: "line turning" })],
    waiting: [h("circle", { cx: 9, cy: 9, r: 6.7, class: "line" }), h("path", { d: "M9 5.2V9l2.6 1.7", class: "line" })],
    stuck: [h("path", { d: "M9 1.2l7.8 7.8L9 16.8 1.2 9z", class: "fill" }), h("path", { d: "M9 5.4v4.2M9 12.1v.2", class: "cut" })],
    missing: [h("circle", { cx: 9, cy: 9, r: 6.7, class: "line dashed" }), h("path", { d: "M6.6 6.6l4.8 4.8M11.4 6.6l-4.8 4.8", class: "line" })],
    paused: [h("circle", { cx: 9, cy: 9, r: 7.5, class: "fill" }), h("path", { d: "M7 6v6M11 6v6", class: "cut" })],
    deleting: [h("circle", { cx: 9, cy: 9, r: 6.7, class: "line" }), h("path", { d: "M5.8 9h6.4", class: "line" })],
  };
  return h("svg", { class: `mark ${colourOf(one)}`, viewBox: "0 0 18 18", width: size, height: size, "aria-hidden": "true" }, shapes[word] ?? shapes.waiting);
}

export function wordOf(one) {
  if (one.missing && one.reason === "NotFound") return "missing";
  if (one.paused) return "paused";
  if (one.deleting && one.state !== "stuck") return "deleting";
  return one.state;
}

const colourOf = (one) => (one.paused && one.state === "ready" ? "is-paused" : `is-${one.state}`);

/// The mark with its word beside it.
export function state(one, extra = "") {
  const word = wordOf(one);
  return h("span", { class: `state ${colourOf(one)} ${extra}`, title: MEANINGS[one.state] ?? "" }, mark(one), h("span", {}, word, one.overdue ? ", overdue" : ""));
}

/// A bar with what is done, and when the rest will be. Few parts are drawn one by one.
export function progress(one, now, { words = true } = {}) {
  if (!one) return null;
  const total = Math.max(one.total, 1);
  const done = Math.min(Math.max(one.done, 0), total);
  const rest = left(one.eta, now);
  const parts = total <= 12 && total > 1;
  const bar = h(
    "div",
    { class: `progress${parts ? " parts" : ""}${total === 1 ? " open" : ""}`, role: "progressbar", "aria-valuemin": 0, "aria-valuemax": total, "aria-valuenow": total === 1 ? null : done, "aria-label": one.text },
    parts
      ? Array.from({ length: total }, (_, index) => h("span", { class: index < done ? "done" : index === done ? "next" : "" }))
      : h("span", { class: "done", vars: { share: `${(done / total) * 100}%` } }),
  );
  if (!words) return bar;
  return h("div", { class: "how-far" }, bar, h("p", {}, h("strong", {}, one.text), rest?.long ? h("span", { class: "soft" }, rest.long) : null));
}

export function ago(at, now, after = " ago") {
  if (!at) return null;
  return h("time", { datetime: at, title: whole(at), class: "number" }, since(at, now) + after);
}

/// An object's name, with its kind in the background.
export const named = (id) => h("span", { class: "named" }, h("span", { class: "kind" }, id.kind), h("span", { class: "name" }, id.name || "…"));

export function versionOf(one) {
  if (!one.version) return null;
  if (!one.desiredVersion) return h("span", { class: "number" }, one.version);
  return h("span", { class: "number from-to" }, h("span", {}, one.version), h("span", { class: "arrow" }, " → "), h("strong", {}, one.desiredVersion));
}

/// A command with a button that copies it.
export function command(text, { announce, ui }) {
  const copied = ui.copied === text;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      ui.copied = text;
      announce("Copied");
    } catch {
      announce("The browser does not let this page copy: select the command instead");
    }
    ui.draw();
    setTimeout(() => {
      if (ui.copied === text) ui.copied = null;
      ui.draw();
    }, 2000);
  };
  return h(
    "div",
    { class: "command" },
    h("code", { tabindex: "0", role: "group", "aria-label": "The command to run next" }, text),
    h("button", { type: "button", class: copied ? "done" : "", on: { click: copy } }, copied ? "Copied" : "Copy", h("span", { class: "unseen" }, " the command")),
  );
}

/// Nothing to see, or nothing yet.
export const empty = (title, ...text) => h("div", { class: "empty" }, h("h2", {}, title), text.length ? h("p", {}, ...text) : null);

export const loading = () =>
  h("div", { class: "loading", role: "status" }, h("span", { class: "unseen" }, "Loading"), [70, 100, 88, 94, 60].map((share) => h("span", { class: "bone", vars: { share: `${share}%` } })));

/// A field that `/` leads to.
export function search(value, label, change) {
  return h(
    "div",
    { class: "search" },
    h("svg", { viewBox: "0 0 18 18", width: 16, height: 16, "aria-hidden": "true" }, h("circle", { cx: 8, cy: 8, r: 5 }), h("path", { d: "M12 12l4 4" })),
    h("input", { id: "search", type: "search", value, placeholder: label, "aria-label": label, autocomplete: "off", spellcheck: "false", on: { input: (event) => change(event.target.value) } }),
    h("kbd", { "aria-hidden": "true" }, "/"),
  );
}

/// Kinds that could not be read.
export function unreadable(kinds) {
  if (!kinds?.length) return null;
  return h(
    "details",
    { class: "note", key: "unreadable" },
    h("summary", {}, `Not shown: you are not permitted to list ${kinds.length === 1 ? kinds[0].kind : `${kinds.length} kinds`}`),
    h("ul", {}, kinds.map((one) => h("li", { key: `${one.group}/${one.kind}` }, h("strong", {}, one.kind), one.group ? ` (${one.group})` : "", h("span", { class: "soft" }, ` ${one.why}`)))),
  );
}

/// Where in this page an object is shown.
export const objectAt = (route, id) => `#${route.path}?${new URLSearchParams({ ...route.query, o: keyOf(id) })}`;

export { keyOf, name };
