// How far has each change come, and what took the time?

import { $, clock, link, list, make, plural, relink, row, say, set, span, whole } from "./dom.js";

/** How well the beginning of a change is known, where that is not exactly. */
const DATED = { second: "known to the second", watch: "counted from when it was seen" };
/** Until the next update a bar that is not finished grows by this much, as time does. */
const AHEAD = 0.6;

/** Rows until somebody asks for more, and then. */
const FEW = 12, MANY = 40;
let all = false;

/** The shared scale: so long that three of four finished changes fit well; longer ones run off its end. */
function scale(changes) {
  const ended = changes.filter((change) => change.allAfterSeconds !== null);
  const ends = (ended.length ? ended : changes).map((change) => change.allAfterSeconds ?? change.openSeconds).sort((a, b) => a - b);
  const most = ends[Math.floor(ends.length * 0.75)] || 0.01;
  return Math.max(most * 1.4, 0.005);
}

function build(change) {
  const line = row(
    { label: "Time", className: "time" },
    { label: "Service", head: true },
    { label: "Change" },
    { label: "Way" },
    { label: "Nodes" },
    { label: "Everywhere after", className: "number" });
  const [time, service, kind, way, nodes, end] = line.children;
  time.append(make("time"));
  service.append(link("service", change.service));
  kind.append(make("span"), make("div", { class: "small" }));
  way.append(make("div", { class: "bar", role: "img" },
    make("i", { class: "api" }), make("i", { class: "slice" }), make("i", { class: "kernel" }), make("span", { class: "ticks" })));
  nodes.append(make("span"), make("div", { class: "small" }));
  end.append(make("span"), make("div", { class: "small" }));
  return line;
}

function place(part, from, to, most) {
  const at = (seconds) => Math.min(100, Math.max(0, (seconds / most) * 100));
  const [left, width] = [at(from), Math.max(0, at(to) - at(from))];
  part.style.left = `${left.toFixed(2)}%`;
  part.style.width = `${width.toFixed(2)}%`;
}

/** Ticks of nodes on a lane of their own; in large clusters, of half and of 99 % of them. */
function ticks(lane, change, most) {
  const named = change.nodes.length ? change.nodes.map((node) => [node.name, node.afterSeconds])
    : [["half of the nodes", change.halfAfterSeconds], ["99 % of the nodes", change.mostAfterSeconds], [change.last ?? "all nodes", change.allAfterSeconds]];
  list(lane, named.filter(([, at]) => at !== null), ([name]) => name, () => make("b"), (tick, [name, at]) => {
    set(tick, { title: `${name}: ${span(at)}` });
    tick.style.left = `${Math.min(100, (at / most) * 100).toFixed(2)}%`;
  });
}

/** One sentence for whoever cannot see the bar. */
function described(change) {
  const said = [];
  if (change.apiAfterSeconds !== null) said.push(`in the API after ${span(change.apiAfterSeconds)}`);
  if (change.writtenAfterSeconds) said.push(`in a slice after ${span(change.writtenAfterSeconds)}`);
  if (change.halfAfterSeconds !== null) said.push(`on half of the nodes after ${span(change.halfAfterSeconds)}`);
  said.push(change.allAfterSeconds === null ? "not everywhere yet" : `everywhere after ${span(change.allAfterSeconds)}`);
  if (change.last && change.allAfterSeconds !== null) said.push(`${change.last} was last`);
  return said.join(", ");
}

function update(line, change, most, objective) {
  const [time, service, kind, way, nodes, end] = line.children;
  const open = change.allAfterSeconds === null;
  const took = change.allAfterSeconds ?? change.openSeconds;
  set(line, { "data-open": open, "data-id": change.id, "data-slow": took > objective });
  const stamp = time.firstElementChild;
  say(stamp, clock(change.began));
  set(stamp, { datetime: change.began, title: change.began });
  relink(service.firstElementChild, "service", change.service);
  say(kind.firstElementChild, change.kind);
  say(kind.lastElementChild, [change.pod, DATED[change.dated]].filter(Boolean).join(", "));
  set(kind.lastElementChild, { title: change.dated === "exact" ? null : "how well the beginning of this change is known" });
  const bar = way.firstElementChild;
  const api = change.apiAfterSeconds ?? 0;
  const [apiPart, slicePart, kernelPart, lane] = bar.children;
  place(apiPart, 0, api, most);
  place(slicePart, api, change.writtenAfterSeconds, most);
  set(kernelPart, { "data-open": open });
  place(kernelPart, change.writtenAfterSeconds, open ? took + AHEAD : took, most);
  ticks(lane, change, most);
  set(bar, { "data-over": took > most });
  set(bar, { "aria-label": described(change), title: described(change) });
  say(nodes.firstElementChild, `${whole(change.reached)} of ${whole(change.of)}`);
  const named = change.behind.slice(0, 3), others = change.of - change.reached - named.length;
  const waits = open && named.length ? `waits for ${named.join(", ")}${others > 0 ? ` and ${whole(others)} more` : ""}` : "";
  say(nodes.lastElementChild, waits || (change.last && change.of > 1 && took > objective ? `${change.last} was last` : ""));
  set(nodes.lastElementChild, { class: waits ? "small bad" : "small" });
  say(end.firstElementChild, open ? `not yet, ${span(change.openSeconds)}` : span(change.allAfterSeconds));
  say(end.lastElementChild, change.halfAfterSeconds === null ? "" : `half ${span(change.halfAfterSeconds)}`);
}

/** Shows these changes. */
export function waterfall(changes, objective, empty) {
  // What is not everywhere comes first: it is what somebody came for.
  const open = (change) => change.allAfterSeconds === null;
  const sorted = [...changes.filter(open), ...changes.filter((change) => !open(change))];
  const shown = sorted.slice(0, all ? MANY : FEW);
  more(Math.min(changes.length, MANY), () => waterfall(changes, objective, empty));
  const most = scale(shown);
  say("axis-to", span(most));
  list(document.querySelector("#waterfall tbody"), shown, (change) => change.id, build, (line, change) => update(line, change, most, objective));
  set($("waterfall"), { hidden: !shown.length });
  if (!shown.length) say("changes-note", empty);
}

/** The button that shows more rows, or fewer. */
function more(count, again) {
  const button = $("more");
  button.hidden = count <= FEW;
  say(button, all ? `Show ${FEW}` : `Show ${count}`);
  set(button, { "aria-expanded": String(all) });
  button.onclick = () => { all = !all; again(); };
}

/** What was found, in words. */
export function found(matched) {
  return matched > MANY ? `${plural(matched, "change fits", "changes fit")}, the first ${MANY} can be shown.` : `${plural(matched, "change fits", "changes fit")}.`;
}
