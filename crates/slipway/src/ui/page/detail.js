// What is selected in a tree: its words, its conditions, why it is as it is, its plan, and what happened to it.

import { h } from "./dom.js";
import { ago, keyOf, mark, named, objectAt, progress, state, versionOf } from "./parts.js";
import { ask, Refused } from "./source.js";
import { why } from "./why.js";
import { clock, ofKey, whole } from "./words.js";

/// The object in the address, if there is one.
export async function loadObject(route, signal) {
  const id = ofKey(route.query.o);
  if (!id) return null;
  try {
    return await ask("object", id, signal);
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return { gone: id, message: error.message };
    throw error;
  }
}

export function detail(node, object, context) {
  const { now, route } = context;
  const frame = (...children) => h("aside", { class: "panel detail", id: "detail", "aria-label": "What is selected" }, ...children);
  if (node?.count > 1) {
    return frame(
      h("p", { class: "over" }, node.kind),
      h("h2", {}, `${node.count} alike`),
      state(node),
      node.reason && node.state !== "ready" ? h("p", { class: "message" }, [node.reason, node.message].filter(Boolean).join(": ")) : null,
      h("ul", { class: "members" }, (node.members ?? []).map((name) => h("li", { key: name }, h("a", { href: objectAt(route, { ...node, name }) }, name)))),
      node.count > (node.members ?? []).length ? h("p", { class: "soft" }, `and ${node.count - node.members.length} more`) : null,
    );
  }
  if (object?.gone) {
    return frame(h("p", { class: "over" }, object.gone.kind), h("h2", {}, object.gone.name), h("p", { class: "message" }, object.message));
  }
  if (!object?.node) {
    return frame(h("p", { class: "soft nothing" }, "Select an object to see its conditions, why it is as it is, and what happened to it."));
  }
  const shown = object.node;
  const facts = Object.entries(shown.facts ?? {});
  return frame(
    h("p", { class: "over" }, shown.kind, shown.group ? h("span", { class: "soft" }, ` ${shown.group}`) : null),
    h("h2", {}, shown.name),
    h("p", { class: "facts" }, state(shown), versionOf(shown), shown.created ? h("span", { class: "soft" }, "age ", ago(shown.created, now, "")) : null),
    shown.missing ? h("p", { class: "message" }, shown.message) : null,
    progress(shown.progress, now),
    counts(shown.counts),
    facts.length ? h("dl", { class: "pairs" }, facts.map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value)))) : null,
    shown.waitsFor?.length ? h("div", { class: "waits" }, h("h3", {}, "Waits for"), h("ul", {}, shown.waitsFor.slice(0, 8).map((id) => h("li", { key: keyOf(id) }, h("a", { href: objectAt(route, id) }, named(id)))), shown.waitsFor.length > 8 ? h("li", { class: "soft" }, `and ${shown.waitsFor.length - 8} more`) : null)) : null,
    shown.kind === "Cluster" ? null : why(object.explanation, { ...context, heading: "h3" }),
    conditions(shown.conditions, now),
    object.hasPlan ? plan(shown, context) : null,
    happened(object.timeline?.entries ?? [], now),
  );
}

function counts(counts) {
  const rows = [
    ["desired", counts?.desired],
    ["up to date", counts?.upToDate],
    ["ready", counts?.ready],
    ["available", counts?.available],
  ].filter(([, value]) => value != null);
  return rows.length ? h("dl", { class: "counts" }, rows.map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", { class: "number" }, value)))) : null;
}

function conditions(all, now) {
  if (!all?.length) return null;
  return h(
    "div",
    { class: "conditions" },
    h("h3", {}, "Conditions"),
    h(
      "ul",
      {},
      all.map((one) =>
        h(
          "li",
          { key: one.type, class: `status-${one.status.toLowerCase()}` },
          h("p", {}, h("span", { class: "type" }, one.type), h("span", { class: "value" }, one.status), one.since ? h("span", { class: "soft" }, ago(one.since, now, "")) : null),
          one.reason || one.message ? h("p", { class: "soft words" }, one.reason ? h("strong", {}, one.reason) : null, one.reason && one.message ? ": " : "", one.message ?? "") : null,
        ),
      ),
    ),
  );
}

/// What the manager would do with the object now. It is asked when somebody wants to know, not with every change.
function plan(node, { ui }) {
  const key = keyOf(node);
  ui.plans ??= new Map();
  const known = ui.plans.get(key);
  const ask_ = async () => {
    ui.plans.set(key, { asking: true });
    ui.draw();
    try {
      const answer = await ask("plan", { group: node.group ?? "", kind: node.kind, namespace: node.namespace ?? "", name: node.name });
      ui.plans.set(key, { at: answer.at, ...answer.plan });
    } catch (error) {
      ui.plans.set(key, { why: error.message });
    }
    ui.draw();
  };
  return h(
    "section",
    { class: "plan", "aria-label": "Plan" },
    h("div", { class: "plan-head" }, h("h3", {}, "Plan"), h("button", { type: "button", disabled: Boolean(known?.asking), on: { click: ask_ } }, known?.asking ? "Asking the manager" : known ? "Ask again" : "What would the manager do now?")),
    known && !known.asking ? h("div", { role: "status" }, known.preview ? steps(known.preview) : h("p", { class: "message" }, known.why), known.at ? h("p", { class: "soft" }, "as of ", clock(known.at), "; nothing was written") : null) : null,
  );
}

const EFFECTS = { outside: "outside of Kubernetes", inside: null, wait: "more may follow", blocked: "blocked" };

function steps(preview) {
  if (preview.leftAlone) return h("p", { class: "message" }, "Nothing is planned: ", preview.leftAlone);
  return [
    preview.paused ? h("p", { class: "message" }, "Nothing of this is done before it goes on: ", preview.paused) : null,
    preview.steps.length
      ? h(
          "ol",
          { class: "steps" },
          preview.steps.map((step, index) =>
            h(
              "li",
              { key: `s${index}`, class: step.effect },
              h("p", {}, h("strong", {}, step.what), EFFECTS[step.effect] ? h("span", { class: "tag" }, EFFECTS[step.effect]) : null),
              h("p", { class: "soft" }, step.why),
              step.changes?.length
                ? h("dl", { class: "changes" }, step.changes.map((change, at) => h("div", { key: `c${at}` }, h("dt", {}, change.path), h("dd", { class: "number" }, h("span", {}, change.from || "nothing"), h("span", { class: "arrow" }, " → "), h("strong", {}, change.to || "nothing")))))
                : null,
            ),
          ),
        )
      : h("p", {}, mark({ state: "ready" }, 15), " Nothing is to be done: it is as asked for."),
  ];
}

function happened(entries, now) {
  const newest = [...entries].reverse().slice(0, 12);
  if (!newest.length) return null;
  return h(
    "div",
    { class: "recent" },
    h("h3", {}, "Lately"),
    h(
      "ol",
      {},
      newest.map((entry, index) =>
        h("li", { key: `${entry.at}${entry.title}${index}`, class: entry.warning ? "warning" : "" }, h("time", { datetime: entry.at, title: whole(entry.at), class: "number soft" }, now - Date.parse(entry.at) < 12 * 3600_000 ? clock(entry.at) : ago(entry.at, now)), h("p", {}, entry.warning ? mark({ state: "stuck" }, 13) : null, h("strong", {}, entry.title), entry.count ? h("span", { class: "times" }, `×${entry.count}`) : null, entry.text ? h("span", { class: "soft" }, ` ${entry.text}`) : null)),
      ),
    ),
  );
}

