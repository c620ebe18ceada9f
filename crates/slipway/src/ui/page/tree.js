// A tree as WAI-ARIA has it: one stop for the tab key, arrows within, what is selected is shown beside it.

import { h } from "./dom.js";
import { keyOf, mark, progress, versionOf, wordOf } from "./parts.js";
import { left, plural, since } from "./words.js";

export const keyOfNode = (node) => (node.count > 1 ? [node.group, node.kind, node.namespace ?? "", `*${node.members?.[0] ?? ""}`].join("~") : keyOf(node));

/// The rows that are to be seen, from top to bottom. `matches` leaves out what neither matches nor leads to what does.
function rows(nodes, closed, matches, level = 1, parent = null, into = []) {
  const seen = matches ? nodes.filter((node) => leadsTo(node, matches)) : nodes;
  seen.forEach((node, index) => {
    const key = keyOfNode(node);
    const below = node.children ?? [];
    const open = below.length > 0 && (matches ? true : !closed.has(key));
    into.push({ node, key, level, parent, open, leaf: below.length === 0, place: index + 1, of: seen.length });
    if (open) rows(below, closed, matches, level + 1, key, into);
  });
  return into;
}

const leadsTo = (node, matches) => matches(node) || (node.children ?? []).some((child) => leadsTo(child, matches));

/// What there is to say of a node in a few words.
export function saying(node) {
  if (node.state === "ready" && !node.deleting) return "";
  return [node.reason, node.message].filter(Boolean).join(": ");
}

/// `ui` keeps `closed` (a Set) and `at` (the key of the row that the tab key stops at).
export function tree({ roots, label, ui, now, selected, select, matches, changed }) {
  const all = rows(roots, ui.closed, matches);
  if (!all.length) return h("p", { class: "soft nothing" }, "Nothing here matches.");
  const found = (key) => all.findIndex((row) => row.key === key);
  const stop = Math.max(0, found(ui.at) >= 0 ? found(ui.at) : found(selected));
  const go = (index) => {
    const row = all[Math.min(Math.max(index, 0), all.length - 1)];
    ui.at = row.key;
    ui.draw();
    document.getElementById(idOf(row.key))?.focus();
  };
  const fold = (row, close) => {
    if (close) ui.closed.add(row.key);
    else ui.closed.delete(row.key);
    ui.draw();
  };
  const pressed = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const index = found(event.target.closest("[role=treeitem]")?.dataset.key);
    if (index < 0) return;
    const row = all[index];
    const moves = {
      ArrowDown: () => go(index + 1),
      ArrowUp: () => go(index - 1),
      Home: () => go(0),
      End: () => go(all.length - 1),
      ArrowRight: () => (row.leaf ? null : row.open ? go(index + 1) : fold(row, false)),
      ArrowLeft: () => (row.open ? fold(row, true) : row.parent ? go(found(row.parent)) : null),
      Enter: () => select(row.node),
      " ": () => select(row.node),
      "*": () => {
        all.filter((other) => other.parent === row.parent).forEach((other) => ui.closed.delete(other.key));
        ui.draw();
      },
    };
    const move = moves[event.key] ?? (/^[\w]$/.test(event.key) ? () => go(byLetter(index, event.key)) : null);
    if (!move) return;
    event.preventDefault();
    move();
  };
  const byLetter = (index, letter) => {
    const from = [...all.slice(index + 1), ...all.slice(0, index + 1)];
    const next = from.find((row) => `${row.node.kind} ${row.node.name}`.toLowerCase().split(" ").some((word) => word.startsWith(letter.toLowerCase())));
    return next ? all.indexOf(next) : index;
  };
  return h(
    "div",
    { class: "tree", role: "tree", "aria-label": label, on: { keydown: pressed } },
    all.map((row, index) => item(row, index === stop)),
  );

  function item(row, isStop) {
    const { node } = row;
    const said = saying(node);
    const isSelected = selected === row.key;
    return h(
      "div",
      {
        key: row.key,
        id: idOf(row.key),
        class: `row is-${node.state}${node.noteworthy ? " noteworthy" : ""}${changed?.has(row.key) ? " changed" : ""}`,
        role: "treeitem",
        tabindex: isStop ? "0" : "-1",
        "data-key": row.key,
        "aria-level": row.level,
        "aria-posinset": row.place,
        "aria-setsize": row.of,
        "aria-expanded": row.leaf ? null : String(row.open),
        "aria-selected": String(isSelected),
        vars: { level: row.level },
        on: {
          click: () => {
            ui.at = row.key;
            select(node);
          },
          dblclick: () => (row.leaf ? null : fold(row, row.open)),
          focus: () => (ui.at = row.key),
        },
      },
      // What is seen in columns is said in one sentence.
      h("span", { class: "unseen" }, spoken(node, said, now)),
      h(
        "span",
        {
          class: row.leaf ? "twist leaf" : row.open ? "twist open" : "twist",
          "aria-hidden": "true",
          on: row.leaf ? {} : { click: (event) => (event.stopPropagation(), fold(row, row.open)) },
        },
        row.leaf ? null : h("svg", { viewBox: "0 0 12 12", width: 12, height: 12 }, h("path", { d: "M4.5 2.5L8 6l-3.5 3.5" })),
      ),
      mark(node),
      h(
        "span",
        { class: "what", "aria-hidden": "true" },
        h("span", { class: "title" }, title(node), node.by ? h("span", { class: "by", title: `named by ${node.by}` }, node.by.replace(/^spec\./, "")) : null),
        said ? h("span", { class: "said" }, said) : null,
      ),
      h("span", { class: "version", "aria-hidden": "true" }, versionOf(node)),
      h("span", { class: "far", "aria-hidden": "true" }, far(node)),
      h("span", { class: "age number", "aria-hidden": "true" }, node.created ? since(node.created, now) : ""),
    );
  }

  function far(node) {
    if (node.progress) {
      const rest = left(node.progress.eta, now);
      return [progress(node.progress, now, { words: false }), h("span", { class: "soft number" }, [node.progress.total > 1 ? `${node.progress.done}/${node.progress.total}` : "", rest?.short].filter(Boolean).join(" · "))];
    }
    const counts = node.counts;
    if (counts?.desired != null) {
      const ready = counts.ready ?? counts.available;
      return h("span", { class: "soft number" }, ready == null ? `${counts.desired}` : `${ready}/${counts.desired}`);
    }
    return null;
  }
}

function title(node) {
  if (node.count > 1) return [h("span", { class: "kind" }, node.kind), h("span", { class: "name" }, `${node.count} alike`)];
  return [h("span", { class: "kind" }, node.kind), h("span", { class: "name" }, node.name)];
}

function spoken(node, said, now) {
  const what = node.count > 1 ? `${plural(node.count, node.kind)}, alike` : `${node.kind} ${node.name}`;
  const rest = node.progress ? [node.progress.text, left(node.progress.eta, now)?.long] : [];
  const version = node.version ? [node.desiredVersion ? `version ${node.version}, to be ${node.desiredVersion}` : `version ${node.version}`] : [];
  return [what, wordOf(node) + (node.overdue ? ", overdue" : ""), said, ...version, ...rest].filter(Boolean).join(", ");
}

const idOf = (key) => `row-${key}`;

/// Finds a node by its key.
export function nodeOf(roots, key) {
  for (const node of roots) {
    if (keyOfNode(node) === key) return node;
    const found = nodeOf(node.children ?? [], key);
    if (found) return found;
  }
  return null;
}

/// Whether a node has this text in what is shown of it.
export function holds(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  return (node) => [node.kind, node.name, node.namespace, node.reason, node.message, node.version, ...(node.members ?? [])].some((value) => value?.toLowerCase().includes(wanted));
}

