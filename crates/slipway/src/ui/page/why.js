// Why something is not ready: the way from the symptom to the first cause, who has to act, and what to run next.

import { h } from "./dom.js";
import { ago, command, keyOf, mark, named, objectAt } from "./parts.js";
import { plural } from "./words.js";

export function why(explanation, { now, route, ui, announce, heading = "h2", title }) {
  if (!explanation) return null;
  const { chain } = explanation;
  if (!chain.length) return null;
  return h(
    "section",
    { class: `why is-${explanation.state}`, "aria-label": "Why it is not ready" },
    h(heading, {}, title ?? (explanation.state === "stuck" ? "Why it is stuck" : explanation.state === "waiting" ? "What it waits for" : "What is under way")),
    h(
      "ol",
      { class: "chain" },
      chain.map((step, index) => link(step, { now, route, isCause: index === chain.length - 1, first: index === 0 })),
    ),
    h(
      "dl",
      { class: "advice" },
      h("div", {}, h("dt", {}, "Who has to act"), h("dd", {}, explanation.who)),
      explanation.advice ? h("div", {}, h("dt", {}, "What helps"), h("dd", {}, code(explanation.advice))) : null,
      explanation.command ? h("div", { class: "next" }, h("dt", {}, "Run next"), h("dd", {}, command(explanation.command, { announce, ui }))) : null,
    ),
    explanation.others?.length
      ? h(
          "details",
          { class: "others" },
          h("summary", {}, `${plural(explanation.others.length, "further cause")} beside this one`),
          h("ul", {}, explanation.others.map((step) => h("li", { key: keyOf(step) }, step_(step, { now, route })))),
        )
      : null,
  );
}

function link(step, { now, route, isCause, first }) {
  return h("li", { key: keyOf(step), class: `${isCause ? "cause" : ""} is-${step.state}` }, mark(step), h("div", {}, step_(step, { now, route, isCause: isCause && !first })));
}

function step_(step, { now, route, isCause = false }) {
  return [
    h("p", { class: "step" }, h("a", { href: objectAt(route, step) }, named(step)), step.by ? h("span", { class: "by" }, step.by === "owner" ? "owned" : step.by) : null, isCause ? h("span", { class: "tag" }, "first cause") : null),
    h("p", { class: "reason" }, step.reason ? h("strong", {}, step.reason) : null, step.meaning ? h("span", {}, step.reason ? `: ${step.meaning}` : step.meaning) : null, step.since ? h("span", { class: "soft" }, " · for ", ago(step.since, now, "")) : null),
    step.message ? h("p", { class: "message" }, step.message) : null,
  ];
}

/// Text with `code` in it.
export function code(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", { key: `c${index}` }, part) : part));
}

