// What happened in the last two hours, and which moment does somebody point at?

import { $, clock, list, make, minute, plural, say, set, span } from "./dom.js";

const WIDTH = 1000, HEIGHT = 150, TOP = 12, BOTTOM = 126;
const HOURS = 2 * 3600 * 1000;
const SVG = "http://www.w3.org/2000/svg";

let past = null;
let pointed = null;
let parts = null;

function draw(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

function prepare() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  parts = { svg, bands: draw("g", {}, svg), grid: draw("g", { class: "grid" }, svg), area: draw("path", { class: "area" }, svg),
    line: draw("path", { class: "sli" }, svg), goal: draw("line", { class: "goal", x1: 0, x2: WIDTH }, svg),
    cursor: draw("line", { class: "cursor", y1: 0, y2: BOTTOM, visibility: "hidden" }, svg) };
  parts.labels = make("div", { class: "labels", "aria-hidden": "true" });
  parts.tip = make("output", { class: "tip", "aria-hidden": "true" });
  $("chart").replaceChildren(svg, parts.labels, parts.tip);
}

/** A round upper end: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** The vertical scale is logarithmic: calm and outage are ten thousand times apart. */
function scales() {
  const values = past.points.map(([, value]) => value).filter((value) => value !== null);
  const low = Math.min(0.001, ...values.filter((value) => value > 0));
  const high = ceiling(Math.max(past.objectiveSeconds * 2, ...values));
  const floor = 10 ** Math.floor(Math.log10(low));
  const to = Date.parse(past.time), from = to - HOURS;
  const x = (at) => Math.max(0, ((at - from) / HOURS) * WIDTH);
  const y = (value) => BOTTOM - (Math.log10(Math.max(value, floor) / floor) / Math.log10(high / floor)) * (BOTTOM - TOP);
  return { from, to, x, y, floor, high };
}

function label(text, left, top, className) {
  const element = make("span", { class: className, text });
  element.style.left = `${left}%`;
  element.style.top = `${top}px`;
  return element;
}

function paint() {
  if (!parts) prepare();
  const { from, to, x, y, floor, high } = scales();
  const known = past.points.filter(([, value]) => value !== null).map(([at, value]) => [x(Date.parse(at)), y(value)]);
  // A pause longer than two steps is a gap, not a line.
  let line = "", area = "", start = null, last = null;
  const gap = (past.stepSeconds * 2.5 * 1000 / HOURS) * WIDTH;
  for (const [at, value] of known) {
    if (last === null || at - last > gap) { if (start !== null) area += `L${last} ${BOTTOM}L${start} ${BOTTOM}Z`; line += "M"; area += "M"; start = at; }
    else { line += "L"; area += "L"; }
    line += `${at.toFixed(1)} ${value.toFixed(1)}`;
    area += `${at.toFixed(1)} ${value.toFixed(1)}`;
    last = at;
  }
  if (start !== null) area += `L${last} ${BOTTOM}L${start} ${BOTTOM}Z`;
  parts.line.setAttribute("d", line);
  parts.area.setAttribute("d", area);
  const goal = y(past.objectiveSeconds);
  set(parts.goal, { y1: goal, y2: goal });
  const labels = [label(`objective ${span(past.objectiveSeconds)}`, 100, goal, "goal")];
  parts.grid.replaceChildren();
  for (let value = floor; value <= high * 1.001; value *= 10) {
    draw("line", { x1: 0, x2: WIDTH, y1: y(value), y2: y(value) }, parts.grid);
    if (Math.abs(y(value) - goal) > 14) labels.push(label(span(value), 0, y(value), "value"));
  }
  const narrow = $("chart").clientWidth < 600 ? 60 : 15;
  for (let at = Math.ceil(from / 9e5) * 9e5; at <= to; at += 9e5) {
    if (new Date(at).getMinutes() % narrow) continue;
    draw("line", { x1: x(at), x2: x(at), y1: BOTTOM, y2: BOTTOM + 5 }, parts.grid);
    const place = x(at) / WIDTH * 100;
    if (place > 3 && place < 97) labels.push(label(minute(at), place, BOTTOM + 6, "time"));
  }
  parts.labels.replaceChildren(...labels);
  parts.bands.replaceChildren();
  for (const incident of past.incidents) {
    const left = x(Date.parse(incident.from)), right = x(incident.to ? Date.parse(incident.to) : to);
    draw("rect", { class: "incident", x: left, width: Math.max(3, right - left), y: TOP, height: BOTTOM - TOP }, parts.bands);
  }
  const highest = Math.max(0, ...past.points.map(([, value]) => value ?? 0));
  const bad = past.incidents.length ? `, ${plural(past.incidents.length, "incident", "incidents")}` : ", no incident";
  set($("chart"), { "aria-valuemax": Math.max(0, past.points.length - 1), "data-points": past.points.length });
  if (pointed === null) set($("chart"), { "aria-valuetext": `highest ${span(highest)}, objective ${span(past.objectiveSeconds)}${bad}` });
}

function incidents(choose) {
  const shown = past.incidents.slice(0, 6);
  list($("incidents"), shown, (it) => it.from, () => {
    const button = make("button", { type: "button" });
    button.addEventListener("click", () => choose(button.dataset.from, button.dataset.to));
    return make("li", {}, button);
  }, (item, it) => {
    const button = item.firstElementChild;
    const end = it.to ?? past.time;
    const others = it.nodes > 1 ? ` and ${it.nodes - 1} more` : "";
    const missing = it.changes ? `, ${plural(it.changes, "change", "changes")} of ${plural(it.services, "Service", "Services")}` : "";
    const pods = it.waiting ? `, ${plural(it.waiting, "pod", "pods")} waited` : "";
    const stage = it.stage === "silent" ? "silent" : "behind";
    say(button, `${clock(it.from)} ${it.node}${others} ${stage} ${span((Date.parse(end) - Date.parse(it.from)) / 1000)}${missing}${pods}`);
    set(button, { "data-from": it.from, "data-to": end, "data-open": !it.to });
  });
}

/** Shows the point that is pointed at. */
function point(index) {
  const at = past?.points[index];
  pointed = at ? index : null;
  parts.cursor.setAttribute("visibility", at ? "visible" : "hidden");
  parts.tip.hidden = !at;
  if (!at) return;
  const { x } = scales();
  const place = x(Date.parse(at[0]));
  set(parts.cursor, { x1: place, x2: place });
  const text = `${clock(at[0])}: ${at[1] === null ? "quiet" : span(at[1])}, ${plural(at[2], "change", "changes")}`;
  say(parts.tip, text);
  parts.tip.style.left = `${Math.min(82, Math.max(0, place / WIDTH * 100 - 8))}%`;
  set($("chart"), { "aria-valuenow": index, "aria-valuetext": text });
}

/** Makes the chart answer mouse and keyboard; `choose(from, to)` gets the time that was chosen. */
export function listen(choose) {
  const chart = $("chart");
  const nearest = (event) => {
    const box = parts.svg.getBoundingClientRect();
    const { from } = scales();
    const at = from + ((event.clientX - box.left) / box.width) * HOURS;
    let best = null;
    past.points.forEach(([time], index) => {
      const far = Math.abs(Date.parse(time) - at);
      if (best === null || far < best.far) best = { far, index };
    });
    return best?.index;
  };
  const pick = (index) => {
    const at = past?.points[index];
    if (!at) return;
    const to = Date.parse(at[0]), half = past.stepSeconds * 1000;
    choose(new Date(to - 3 * half).toISOString(), new Date(to + half).toISOString());
  };
  chart.addEventListener("pointermove", (event) => { if (past?.points.length) point(nearest(event)); });
  chart.addEventListener("pointerleave", () => { if (past) point(null); });
  chart.addEventListener("click", (event) => { if (past?.points.length) pick(nearest(event)); });
  chart.addEventListener("keydown", (event) => {
    if (!past?.points.length) return;
    const last = past.points.length - 1, now = pointed ?? last + 1;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 20, PageDown: now + 20, Home: 0, End: last }[event.key];
    if (next !== undefined) { event.preventDefault(); point(Math.max(0, Math.min(last, next))); }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(pointed ?? last); }
    if (event.key === "Escape") point(null);
  });
}

export function history(document, choose) {
  past = document;
  paint();
  incidents(choose);
}
