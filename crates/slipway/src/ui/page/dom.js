// Elements from values, and their changes with as few touches as it takes: what has the focus keeps it. Text becomes text
// nodes and nothing else; there is no way from a string to markup here.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path", "circle", "rect", "line", "g", "text", "title", "polygon", "ellipse"]);
const PROPERTIES = new Set(["value", "checked", "indeterminate"]);
const FORBIDDEN = /^(on|srcdoc$|src$|style$|action$|formaction$|xlink:)/i;

/// `h("p", { class: "note", on: { click } }, "text", h(...))`; a `key` names a child among its siblings.
export function h(tag, properties, ...children) {
  const { key = null, on = {}, vars = null, ...attributes } = properties ?? {};
  return { tag, key, on, vars, attributes, children: flat(children) };
}

function flat(children, into = []) {
  for (const child of children) {
    if (Array.isArray(child)) flat(child, into);
    else if (child !== null && child !== undefined && child !== false && child !== true) {
      into.push(typeof child === "object" ? child : { text: String(child) });
    }
  }
  return into;
}

/// Makes the children of an element what they should be.
export function show(parent, ...children) {
  const focused = document.activeElement;
  patch(parent, flat(children));
  if (focused && focused !== document.activeElement && focused.isConnected && parent.contains(focused)) {
    focused.focus({ preventScroll: true });
  }
}

function patch(parent, wanted) {
  const named = new Map();
  const rest = [];
  for (const node of parent.childNodes) {
    if (node.made?.key != null) named.set(node.made.key, node);
    else rest.push(node);
  }
  let at = parent.firstChild;
  for (const one of wanted) {
    let node = null;
    if (one.key != null) {
      node = named.get(one.key) ?? null;
      if (node && node.made.tag !== one.tag) node = null;
      if (node) named.delete(one.key);
    } else {
      const index = rest.findIndex((other) => kind(other) === (one.tag ?? "#text"));
      if (index >= 0) [node] = rest.splice(index, 1);
    }
    node ??= create(one);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
    update(node, one);
  }
  for (const node of [...named.values(), ...rest]) node.remove();
}

const kind = (node) => (node.nodeType === Node.TEXT_NODE ? "#text" : node.made?.tag);

function create(one) {
  if (one.text !== undefined) return document.createTextNode(one.text);
  const element = DRAWN.has(one.tag) ? document.createElementNS(SVG, one.tag) : document.createElement(one.tag);
  element.made = { tag: one.tag, key: one.key, attributes: {}, on: {}, vars: {} };
  return element;
}

function update(node, one) {
  if (one.text !== undefined) {
    if (node.data !== one.text) node.data = one.text;
    return;
  }
  const made = node.made;
  for (const name of Object.keys(made.attributes)) {
    if (!(name in one.attributes)) set(node, name, null);
  }
  for (const [name, value] of Object.entries(one.attributes)) {
    if (made.attributes[name] !== value && !PROPERTIES.has(name)) set(node, name, value);
  }
  made.attributes = one.attributes;
  for (const name of Object.keys(one.on)) {
    if (!(name in made.on)) node.addEventListener(name, (event) => node.made.on[name]?.(event));
  }
  made.on = { ...Object.fromEntries(Object.keys(made.on).map((name) => [name, null])), ...one.on };
  if (one.vars) {
    for (const [name, value] of Object.entries(one.vars)) {
      if (made.vars[name] !== value) node.style.setProperty(`--${name}`, String(value));
    }
    made.vars = one.vars;
  }
  patch(node, one.children);
  // A choice can be made only among options that are there.
  for (const name of PROPERTIES) {
    if (name in one.attributes) set(node, name, one.attributes[name]);
  }
}

function set(node, name, value) {
  if (FORBIDDEN.test(name)) throw new Error(`${name} is not set here`);
  if (name === "href" && value != null && !String(value).startsWith("#")) throw new Error("links lead into this page");
  if (PROPERTIES.has(name)) {
    if (node[name] !== value) node[name] = value ?? "";
  } else if (value === null || value === undefined || value === false) {
    node.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}
