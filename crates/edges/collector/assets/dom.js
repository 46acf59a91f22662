// How does a value become text, and how does a list become rows without making them anew?

export const $ = (id) => document.getElementById(id);

/** Milliseconds below a second, seconds above. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0095) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 3600) return `${Math.floor(rounded / 60)} min ${rounded % 60} s`;
  return `${Math.floor(rounded / 3600)} h ${Math.floor((rounded % 3600) / 60)} min`;
}

/** A figure whose true value lies between two bounds; the upper one is shown, as it is the safe one. */
export function estimate(value) {
  if (!value) return "–";
  return value.highSeconds === null ? `> ${span(value.lowSeconds)}` : span(value.highSeconds);
}

const COUNT = new Intl.NumberFormat("en");

/** A whole number, such as 5,000. One formatter for all: making one costs more than a row. */
export const whole = (count) => COUNT.format(count);

export const plural = (count, one, many) => `${whole(count)} ${count === 1 ? one : many}`;

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const SHORT = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

/** The time of day, by the browser's clock. */
export const clock = (at) => CLOCK.format(new Date(at));
export const minute = (at) => SHORT.format(new Date(at));

/** Writes text, unless it is there already: screen readers announce changes, and layout costs. */
export function say(element, text) {
  const node = typeof element === "string" ? $(element) : element;
  if (node.textContent !== text) node.textContent = text;
}

/** Sets attributes; null and false take one away. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = value === true ? "" : value;
    if (value === null || value === undefined || value === false) {
      if (element.hasAttribute(name)) element.removeAttribute(name);
    } else if (element.getAttribute(name) !== String(text)) element.setAttribute(name, text);
  }
  return element;
}

/** An element with text and attributes; children may follow. Text never becomes markup. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  const { text, ...rest } = attributes;
  if (text !== undefined) element.textContent = text;
  set(element, rest).append(...children);
  return element;
}

/** Cells of a row: each knows its heading, which narrow windows show beside it. */
export function row(...cells) {
  const line = make("tr", { role: "row" });
  for (const { head, label, className } of cells) {
    const attributes = { "data-label": label, class: className };
    line.append(head ? make("th", { ...attributes, scope: "row", role: "rowheader" }) : make("td", { ...attributes, role: "cell" }));
  }
  return line;
}

/**
 * Brings a list up to date: what stays is changed in place, so that focus, selection and running transitions survive and
 * nothing is made that is there. `build` makes an element, `update` fills it. It never holds more than the items given.
 */
export function list(container, items, key, build, update) {
  const known = container.known ??= new Map();
  const wanted = new Set();
  let before = null;
  for (const item of items) {
    const name = key(item);
    if (wanted.has(name)) continue;
    wanted.add(name);
    let element = known.get(name);
    if (!element) known.set(name, element = build(item));
    update(element, item);
    const next = before ? before.nextElementSibling : container.firstElementChild;
    if (next !== element) container.insertBefore(element, next);
    before = element;
  }
  for (const [name, element] of known) {
    if (!wanted.has(name)) { element.remove(); known.delete(name); }
  }
}

/** A link to the page of a Service or a node. */
export function link(kind, name) {
  return make("a", { href: `?${new URLSearchParams({ [kind]: name })}`, text: name });
}

export function relink(anchor, kind, name) {
  say(anchor, name);
  set(anchor, { href: `?${new URLSearchParams({ [kind]: name })}` });
}
