// Where the page starts: which view the address asks for, when its data is read again, and what holds for all views.

import * as cluster from "./cluster.js";
import { h, show } from "./dom.js";
import * as events from "./events.js";
import * as fleet from "./fleet.js";
import * as kinds from "./kinds.js";
import { empty, loading } from "./parts.js";
import { follow, Refused, signIn, takeToken } from "./source.js";
import { clock } from "./words.js";

const VIEWS = { fleet, cluster, upgrades: kinds, autoscaling: kinds, hosts: kinds, events };
const TABS = [
  ["fleet", "Fleet", "#/"],
  ["upgrades", "Upgrades", "#/upgrades"],
  ["autoscaling", "Autoscaling", "#/autoscaling"],
  ["hosts", "Hosts", "#/hosts"],
  ["events", "Events", "#/events"],
];
/// Changes that come closer together are read together.
const TOGETHER = 300;
/// Ages and what is left are counted on without the server.
const TICK = 1000;

const content = document.getElementById("content");
const said = document.getElementById("said");
const state = { route: null, data: null, error: null, link: { how: "connecting", retry: null }, server: null, skew: 0, kept: new Map() };
let reading = null;
let again = null;
let due = null;
let last = 0;

takeToken();

function routeOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view = "", ...parts] = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  const known = view === "" ? "fleet" : view;
  return { view: VIEWS[known] ? known : "unknown", path: `/${path}`, parts, query: Object.fromEntries([...new URLSearchParams(query)].filter(([, value]) => value)) };
}

function navigate(path, query, { replace = false } = {}) {
  const filled = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  const hash = `#${path}${filled ? `?${filled}` : ""}`;
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    moved();
  } else location.hash = hash;
}

/// What a view keeps for itself while the page is open: what is folded, selected, searched for.
function kept(route) {
  const key = route.path;
  if (!state.kept.has(key)) state.kept.set(key, { closed: new Set(), timeline: { hidden: new Set(["write"]), draw }, changed: new Set(), draw });
  return state.kept.get(key);
}

function moved() {
  // The skip link and links within the page are no views.
  if (/^#[a-z]/.test(location.hash)) return;
  const before = state.route;
  state.route = routeOf(location.hash);
  const same = before?.path === state.route.path;
  if (!same) {
    state.data = null;
    state.error = null;
    if (before) {
      window.scrollTo(0, 0);
      content.focus({ preventScroll: true });
      announce(VIEWS[state.route.view]?.title(state.route) ?? "Not found");
    }
  }
  const asks = (query) => [query.o, query.all].join();
  if (!same || asks(before.query) !== asks(state.route.query)) {
    if (same && before.query.o !== state.route.query.o && state.data) state.data.object = null;
    read();
  }
  draw();
}

/// Reads what the view shows, once at a time; a change meanwhile leads to one more.
async function read() {
  clearTimeout(due);
  due = null;
  const { route } = state;
  const view = VIEWS[route.view];
  if (!view) return;
  reading?.abort();
  const stop = new AbortController();
  reading = stop;
  last = Date.now();
  try {
    const data = await view.load(route, stop.signal);
    if (stop.signal.aborted || state.route.path !== route.path) return;
    note(view, route, state.data, data);
    state.data = data;
    state.error = null;
    state.skew = Date.parse(data.at) - Date.now();
  } catch (error) {
    if (stop.signal.aborted) return;
    // What was shown before stays while the connection is lost.
    if (error instanceof Refused || !state.data) state.error = error;
  } finally {
    if (reading === stop) reading = null;
  }
  draw();
}

function changed() {
  if (due) return;
  due = setTimeout(read, Math.max(0, last + TOGETHER - Date.now()));
}

/// Says what has become of things, and lets them be seen for a moment.
function note(view, route, before, after) {
  if (!before) return;
  const old = view.spoken(before);
  const now = view.spoken(after);
  const words = [];
  const ui = kept(route);
  for (const [key, [name, how, why]] of now) {
    const was = old.get(key);
    if (was && was[1] === how && was[2] === why) continue;
    // In a tree what is alike comes and goes as one line; only in the fleet is that news.
    if (!was && view !== fleet) continue;
    ui.changed.add(key);
    setTimeout(() => {
      ui.changed.delete(key);
      draw();
    }, 2500);
    if (!was) words.push(`${name} is new, ${how}`);
    else if (was[1] !== how) words.push(`${name} is ${how}`);
  }
  if (view === fleet) for (const [key, [name]] of old) if (!now.has(key)) words.push(`${name} is gone`);
  if (words.length) announce(words.length > 3 ? `${words.slice(0, 3).join(". ")}. And ${words.length - 3} further changes` : words.join(". "));
}

function announce(text) {
  show(said, text);
}

function draw() {
  const { route, data, error } = state;
  if (!route) return;
  const view = VIEWS[route.view];
  document.title = `${view ? view.title(route) : "Not found"} · Slipway`;
  show(document.getElementById("nav"), TABS.map(([key, label, href]) => h("a", { key, href, "aria-current": key === route.view || (key === "fleet" && route.view === "cluster") ? "page" : null }, label)));
  drawBar();
  drawBanner();
  show(content, body(view, route, data, error));
}

function body(view, route, data, error) {
  if (!view) return h("div", { class: "view", key: "unknown" }, empty("There is no such page", h("a", { href: "#/" }, "To the fleet")));
  const refusal = error instanceof Refused && error.status === 401 ? error : state.link.how === "refused" ? state.link.refusal : null;
  if (refusal?.signIn) return h("div", { class: "view", key: "sign-in" }, signInForm(refusal));
  if (refusal || state.link.how === "refused") {
    return h("div", { class: "view", key: "refused" }, empty("This page needs the address that slipway ui printed", "It has a token in it, which keeps other users of this machine and other pages of this browser out. Open it once more from the terminal where slipway ui runs; after a restart there is another one."));
  }
  if (error) {
    const back = h("p", {}, h("a", { href: "#/" }, "To the fleet"));
    return h("div", { class: "view", key: "error" }, error instanceof Refused && error.status === 404 ? empty("It is not there", error.message) : empty("This could not be read", error.message), back);
  }
  if (!data) return h("div", { class: "view", key: "loading" }, h("h1", { class: "unseen" }, view.title(route)), loading());
  const context = { route, navigate, ui: kept(route), now: Date.now() + state.skew, announce };
  return h("div", { class: `view ${route.view}`, key: route.path }, view.draw(data, context));
}

/// Where everybody signs in with a token of their own.
function signInForm(refusal) {
  const submit = (event) => {
    event.preventDefault();
    const field = document.getElementById("own-token");
    if (!field.value.trim()) return;
    signIn(field.value);
    field.value = "";
    state.tried = true;
    state.error = null;
    state.link = { how: "connecting", retry: null };
    draw();
    read();
    again();
  };
  return h(
    "form",
    { class: "sign-in panel", on: { submit } },
    h("h1", {}, "Sign in"),
    h("p", {}, "This page shows what your token may read, and has no rights of its own. It is kept in this tab until you close it."),
    state.tried ? h("p", { class: "message", role: "alert" }, refusal.message) : null,
    h("label", { for: "own-token" }, "Token"),
    h("input", { id: "own-token", type: "password", autocomplete: "off", spellcheck: "false", required: true }),
    h("button", { type: "submit" }, "Sign in"),
    h("p", { class: "soft" }, "One for a service account: ", h("code", {}, "kubectl create token NAME --namespace NAMESPACE")),
  );
}

function drawBar() {
  const server = state.server;
  show(document.getElementById("context"), server?.context ? h("span", { title: server.server ?? "" }, server.context) : null);
  const words = { connecting: "connecting", live: server?.loading ? "reading" : "live", lost: "not connected", refused: "not allowed" };
  const { how } = state.link;
  show(document.getElementById("connection"), h("span", { class: `link ${how}` }, h("span", { class: "dot", "aria-hidden": "true" }), words[how]));
}

function drawBanner() {
  const { link, server } = state;
  const notes = [];
  if (link.how === "lost") {
    const wait = link.retry ? Math.max(0, Math.ceil((link.retry - Date.now()) / 1000)) : 0;
    notes.push(
      h(
        "div",
        { key: "lost", class: "banner is-stuck" },
        h("p", { role: "alert" }, h("strong", {}, "Connection lost. "), state.data ? `What you see is from ${clock(state.data.at)}. ` : "", "It is tried again by itself."),
        h("span", { class: "soft", "aria-hidden": "true" }, wait > 1 ? `in ${wait} s` : "now"),
        h("button", { type: "button", on: { click: () => again() } }, "Try now"),
      ),
    );
  } else if (link.how === "live" && server?.problem) {
    notes.push(h("div", { key: "problem", class: "banner is-waiting" }, h("p", { role: "alert" }, h("strong", {}, "The API server does not answer. "), `What you see may be old: ${server.problem}`)));
  }
  show(document.getElementById("banner"), notes);
}

// Light and dark: as the system has it, until somebody chooses.
const THEMES = ["system", "light", "dark"];
function theme(next) {
  let chosen = "system";
  try {
    if (next) localStorage.setItem("slipway-theme", next);
    chosen = localStorage.getItem("slipway-theme") ?? "system";
  } catch {
    chosen = next ?? "system";
  }
  if (!THEMES.includes(chosen)) chosen = "system";
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  const button = document.getElementById("theme");
  const drawn = {
    system: [h("circle", { cx: 9, cy: 9, r: 6.5 }), h("path", { class: "fill", d: "M9 2.5a6.5 6.5 0 0 1 0 13z" })],
    light: [h("circle", { cx: 9, cy: 9, r: 3.4 }), h("path", { d: "M9 1v2M9 15v2M1 9h2M15 9h2M3.4 3.4l1.4 1.4M13.2 13.2l1.4 1.4M14.6 3.4l-1.4 1.4M4.8 13.2l-1.4 1.4" })],
    dark: [h("path", { d: "M14.8 11.2A6.4 6.4 0 0 1 6.8 3.2a6.5 6.5 0 1 0 8 8z" })],
  };
  show(button, h("svg", { viewBox: "0 0 18 18", width: 18, height: 18, "aria-hidden": "true" }, drawn[chosen]), h("span", { class: "unseen" }, `Colours: ${chosen}. Change`));
  button.title = `Colours: ${chosen}`;
  button.onclick = () => theme(THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const field = document.getElementById("search");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  } else if (event.key === "Escape" && typing?.id === "search") {
    if (typing.value) {
      typing.value = "";
      typing.dispatchEvent(new Event("input"));
    } else typing.blur();
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});

window.addEventListener("hashchange", () => {
  takeToken();
  moved();
});
theme();
moved();
again = follow({
  changed(server) {
    state.server = server;
    changed();
  },
  connection(how, retry, refusal = null) {
    const before = state.link.how;
    state.link = { how, retry, refusal };
    if (before === "lost" && how === "live") {
      announce("Connected again");
      changed();
    }
    if (before !== how) draw();
  },
});
setInterval(() => {
  if (!document.hidden) draw();
}, TICK);

