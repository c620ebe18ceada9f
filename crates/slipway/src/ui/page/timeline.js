// What happened, as a picture with a lane for each object and as a list that says the same.

import { h } from "./dom.js";
import { keyOf, named, objectAt } from "./parts.js";
import { clock, day, plural, whole } from "./words.js";

const SPANS = [
  ["15 min", 15 * 60],
  ["1 h", 3600],
  ["6 h", 6 * 3600],
  ["1 d", 24 * 3600],
  ["all", Infinity],
];
const KINDS = [
  ["condition", "Conditions"],
  ["event", "Events"],
  ["write", "Writes"],
];
const LANES = 9;
const LISTED = 60;

/// `ui` keeps `span`, `hidden` (a Set of kinds) and `more`.
export function timeline({ entries, now, route, ui, title = "Timeline" }) {
  const spans = SPANS.filter(([, seconds], index) => index === SPANS.length - 1 || entries.some((entry) => now - Date.parse(entry.at) > (SPANS[index - 1]?.[1] ?? 0) * 1000));
  const span = ui.span ?? usual(entries, now);
  const from = Math.max(now - span * 1000, earliest(entries, now));
  const seen = entries.filter((entry) => Date.parse(entry.at) >= from && !ui.hidden.has(entry.what));
  const set = (change) => () => {
    change();
    ui.draw();
  };
  return h(
    "section",
    { class: "timeline", "aria-label": title },
    h(
      "div",
      { class: "section-head" },
      h("h2", {}, title),
      h(
        "div",
        { class: "choices", role: "group", "aria-label": "What is shown" },
        KINDS.map(([kind, label]) =>
          h("button", { type: "button", key: kind, "aria-pressed": String(!ui.hidden.has(kind)), on: { click: set(() => (ui.hidden.has(kind) ? ui.hidden.delete(kind) : ui.hidden.add(kind))) } }, glyph(kind), label),
        ),
      ),
      h(
        "div",
        { class: "choices", role: "group", "aria-label": "How far back" },
        spans.map(([label, seconds]) => h("button", { type: "button", key: label, "aria-pressed": String(span === seconds), on: { click: set(() => (ui.span = seconds)) } }, label)),
      ),
    ),
    seen.length ? [picture(seen, from, now), list(seen, { route, ui, set })] : h("p", { class: "soft nothing" }, "Nothing happened in this time."),
  );
}

const earliest = (entries, now) => entries.reduce((first, entry) => Math.min(first, Date.parse(entry.at)), now - 1000);

/// The shortest time in which something happened.
function usual(entries, now) {
  const [, found] = SPANS.find(([, seconds]) => entries.filter((entry) => now - Date.parse(entry.at) < seconds * 1000).length >= 12) ?? SPANS.at(-1);
  return found;
}

const glyph = (kind) => h("svg", { class: `glyph ${kind}`, viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, shape(kind, 6, 6));

/// Each kind of happening has its shape.
function shape(kind, x, y, warning = false) {
  const to = (dx, dy) => `${(x + dx).toFixed(1)} ${(y + dy).toFixed(1)}`;
  if (warning) return h("path", { class: "warning", d: `M${to(0, -5)}L${to(5, 4)}L${to(-5, 4)}z` });
  if (kind === "event") return h("circle", { class: "event", cx: x.toFixed(1), cy: y, r: 3.6 });
  if (kind === "write") return h("path", { class: "write", d: `M${to(-3, -3)}L${to(3, 3)}M${to(3, -3)}L${to(-3, 3)}` });
  if (kind === "created" || kind === "deleted") return h("path", { class: kind, d: `M${to(0, -5)}L${to(0, 5)}` });
  return h("rect", { class: "condition", x: (x - 3).toFixed(1), y: y - 3, width: 6, height: 6, rx: 1 });
}

function picture(entries, from, now) {
  const lanes = new Map();
  for (const entry of [...entries].reverse()) {
    const key = keyOf(entry.object);
    const lane = lanes.get(key) ?? { id: entry.object, entries: [], warnings: 0 };
    lane.entries.push(entry);
    lane.warnings += entry.warning ? 1 : 0;
    lanes.set(key, lane);
  }
  // What has most to say first; the rest share one lane.
  const sorted = [...lanes.values()].sort((one, other) => other.warnings - one.warnings || other.entries.length - one.entries.length);
  const shown = sorted.slice(0, LANES);
  const rest = sorted.slice(LANES).flatMap((lane) => lane.entries);
  const [width, top, height, label] = [1000, 8, 26, 230];
  const all = [...shown.map((lane) => ({ label: lane.id.name, kind: lane.id.kind, entries: lane.entries })), ...(rest.length ? [{ label: `${plural(sorted.length - LANES, "other")}`, kind: "", entries: rest }] : [])];
  const bottom = top + all.length * height;
  const x = (at) => label + ((new Date(at).getTime() - from) / Math.max(now - from, 1)) * (width - label - 16);
  const ticks = Array.from({ length: 5 }, (_, index) => from + ((now - from) * index) / 4);
  const words = `${plural(entries.length, "entry", "entries")} of ${plural(lanes.size, "object")} between ${whole(from)} and ${whole(now)}; the list below has them all`;
  return h(
    "div",
    { class: "picture" },
    h(
      "svg",
      { viewBox: `0 0 ${width} ${bottom + 24}`, role: "img", "aria-label": words, preserveAspectRatio: "xMidYMid meet" },
      ticks.map((at, index) => [
        h("line", { key: `l${index}`, class: "tick", x1: x(at).toFixed(1), x2: x(at).toFixed(1), y1: top, y2: bottom }),
        h("text", { key: `t${index}`, class: "time", x: x(at).toFixed(1), y: bottom + 16, "text-anchor": index === 4 ? "end" : "middle" }, index === 4 ? "now" : now - from > 20 * 3600_000 ? day(at) : clock(at).slice(0, 5)),
      ]),
      all.map((lane, index) => {
        const y = top + index * height + height / 2;
        return h(
          "g",
          { key: `${lane.kind}/${lane.label}/${index}`, class: "lane" },
          h("line", { x1: label, x2: width - 16, y1: y, y2: y }),
          h("text", { class: "label", x: label - 14, y: y + 4, "text-anchor": "end" }, short(lane.label)),
          // A mark on the same spot as another says nothing more.
          thin(lane.entries, x).map((entry, place) => h("g", { key: place }, shape(entry.what, x(entry.at), y, entry.warning))),
        );
      }),
    ),
  );
}

const short = (text) => (text.length > 32 ? `${text.slice(0, 14)}…${text.slice(-16)}` : text);

function thin(entries, x) {
  const seen = new Set();
  return entries.filter((entry) => {
    const spot = `${entry.warning}${entry.what}${Math.round(x(entry.at) / 3)}`;
    return !seen.has(spot) && seen.add(spot);
  });
}

function list(entries, { route, ui, set }) {
  const newest = [...entries].reverse();
  const listed = newest.slice(0, ui.more ? undefined : LISTED);
  let before = null;
  return [
    h(
      "ol",
      { class: "happened" },
      listed.map((entry, index) => {
        const today = day(entry.at);
        const head = today === before ? null : h("span", { class: "day" }, today);
        before = today;
        return h(
          "li",
          { key: `${entry.at}${keyOf(entry.object)}${entry.title}${index}`, class: entry.warning ? "warning" : "" },
          head,
          h("time", { datetime: entry.at, title: whole(entry.at), class: "number soft" }, clock(entry.at)),
          h("svg", { class: `glyph ${entry.what}`, viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, shape(entry.what, 6, 6, entry.warning)),
          h("a", { href: route ? objectAt(route, entry.object) : "#/" }, named(entry.object)),
          h("span", { class: "event-title" }, entry.warning ? h("span", { class: "unseen" }, "Warning: ") : null, entry.title, entry.count ? h("span", { class: "times" }, `×${entry.count}`) : null),
          entry.text ? h("span", { class: "event-text" }, entry.text) : null,
        );
      }),
    ),
    newest.length > listed.length ? h("button", { type: "button", class: "more", on: { click: set(() => (ui.more = true)) } }, `Show ${plural(newest.length - listed.length, "older entry", "older entries")}`) : null,
  ];
}
