// What is not everywhere yet, and why? One document comes in, the page shows it. No library.

const $ = (id) => document.getElementById(id);

/** Milliseconds below a second, seconds above. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0095) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** A figure whose true value lies between two bounds; the upper one is shown, as it is the safe one. */
function estimate(value) {
  if (!value) return "–";
  return value.highSeconds === null ? `> ${span(value.lowSeconds)}` : span(value.highSeconds);
}

/** An element with text and attributes; children may follow. Text never becomes markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function say(id, text) {
  const element = $(id);
  // Screen readers announce changes, so nothing is written that is there already.
  if (element.textContent !== text) element.textContent = text;
}

function plural(count, one, many) {
  return `${count} ${count === 1 ? one : many}`;
}

function summary(state) {
  $("summary").dataset.level = state.summary.level;
  const text = state.summary.text;
  say("sentence", text);
  document.title = `${state.summary.level === "ok" ? "" : "● "}Pointsman: ${text}`;
}

function cards(state) {
  const { sli, programmers, gates } = state;
  for (const name of ["pooled", "exact"]) {
    say(name, estimate(sli[name].p99));
    $(name).dataset.verdict = sli[name].verdict;
  }
  const pending = ({ unfinished }) => unfinished ? ` (${unfinished} unfinished)` : "";
  say("pooled-note", `p99 of ${plural(sli.pooled.samples, "sample", "samples")}${pending(sli.pooled)}, objective ${span(sli.objectiveSeconds)}`);
  say("exact-note", `p99 of ${plural(sli.exact.samples, "change", "changes")}${pending(sli.exact)}, median ${estimate(sli.exact.p50)}`);
  const { live, silent: mute, stalled, unreachable, plain } = programmers;
  say("coverage", `${live} of ${live + mute + stalled + unreachable + plain}`);
  const states = [[mute, "silent"], [stalled, "stalled"], [unreachable, "unreachable"]].filter(([count]) => count);
  const silent = states.map(([count, state]) => `${plural(count, "is", "are")} ${state}`).join(", ") || "all are heard";
  say("coverage-note", `${silent}; coverage ${(sli.pooled.coverage * 100).toFixed(1)} %`);
  say("waiting", String(gates.waitingTotal));
  const last = gates.recent[0];
  say("waiting-note", last ? `last one waited ${span(last.waitedSeconds)}: ${last.outcome}` : "none was asked for yet");
}

/** The 5-minute figure over the day, and the objective as a line. */
function day(state) {
  const { history, objectiveSeconds, day: today } = state.sli;
  const points = history.filter(([, value]) => value && value.highSeconds !== null);
  const minutes = `${plural(today.minutes.evaluated, "minute", "minutes")} measured, ${today.minutes.quiet} quiet`;
  say("day-note", `${today.date}: ${today.verdict}, ${estimate(today.figure)}; ${minutes}`);
  const figure = $("day");
  if (points.length < 2) { figure.replaceChildren(); return; }
  const times = points.map(([at]) => Date.parse(at));
  const values = points.map(([, value]) => value.highSeconds);
  const top = Math.max(objectiveSeconds, ...values) * 1.1;
  const from = times[0], width = Math.max(1, times[times.length - 1] - from);
  const x = (at) => ((at - from) / width) * 400;
  const y = (value) => 60 - (value / top) * 58;
  const line = values.map((value, index) => `${x(times[index]).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const goal = y(objectiveSeconds).toFixed(1);
  figure.setAttribute("aria-label", `SLI between ${span(Math.min(...values))} and ${span(Math.max(...values))}, objective ${span(objectiveSeconds)}`);
  figure.innerHTML = `<svg viewBox="0 0 400 62" preserveAspectRatio="none" aria-hidden="true">
    <line x1="0" x2="400" y1="${goal}" y2="${goal}" stroke="var(--behind)" stroke-dasharray="4 4"/>
    <polyline points="${line}" fill="none" stroke="var(--kernel)" stroke-width="2" vector-effect="non-scaling-stroke"/></svg>`;
}

function lagging(state) {
  const list = state.lagging.map((lag) => make("li", {},
    make("span", { class: "stage", text: lag.stage }),
    make("strong", { text: lag.name }), ` ${lag.reason}`,
    lag.problem ? make("span", { class: "small", text: ` (${lag.problem})` }) : ""));
  if (!list.length) list.push(make("li", { class: "good", text: { ok: "None: what is known is in every kernel.", unknown: "Nothing is known yet." }[state.summary.level] ?? "None lacks a change for longer than 250 ms." }));
  $("lagging").replaceChildren(...list);
}

/** The shared scale: so long that nine in ten changes fit; longer ones run off its end. */
function scale(changes) {
  const ends = changes.map((change) => change.allAfterSeconds ?? change.openSeconds).sort((a, b) => a - b);
  const most = ends[Math.floor(ends.length * 0.9)] || 0.01;
  return Math.max(most * 1.15, 0.005);
}

function bar(change, most) {
  const at = (seconds) => `${Math.min(100, Math.max(0, (seconds / most) * 100))}%`;
  const part = (kind, from, to) => to > from
    ? make("i", { class: kind, style: { left: at(from), width: `calc(${at(to)} - ${at(from)})` } }) : "";
  const api = change.apiAfterSeconds ?? 0;
  const nodes = change.nodes.map((node) => make("b", { title: `${node.name}: ${span(node.afterSeconds)}`, style: { left: at(node.afterSeconds) } }));
  // What is not everywhere lasts until now.
  const last = change.allAfterSeconds ?? change.openSeconds;
  return make("div", { class: "bar", "aria-hidden": "true" },
    part("api", 0, api), part("slice", api, change.writtenAfterSeconds),
    make("span", { class: "on", "data-open": change.allAfterSeconds === null, style: { left: at(change.writtenAfterSeconds), width: `calc(${at(last)} - ${at(change.writtenAfterSeconds)})` } }),
    ...nodes);
}

/** How well the beginning of a change is known, where that is not exactly. */
const DATED = { second: "its beginning is known to the second", watch: "counted from when it was seen" };

function waterfall(state) {
  const changes = state.changes.slice(0, 25);
  const most = scale(changes);
  say("axis-to", span(most));
  const rows = changes.map((change) => {
    const open = change.allAfterSeconds === null;
    const behind = open && change.behind.length ? `waits for ${change.behind.join(", ")}` : "";
    return make("tr", { "data-open": open, "data-id": change.id },
      make("th", { scope: "row", text: change.service }),
      make("td", {}, change.kind, change.pod ? make("div", { class: "small", text: change.pod }) : "",
        DATED[change.dated] ? make("div", { class: "small", text: DATED[change.dated] }) : ""),
      make("td", {}, bar(change, most)),
      make("td", {}, `${change.reached} of ${change.of}`, behind ? make("div", { class: "small bad", text: behind }) : ""),
      make("td", { class: "number" }, open ? `not yet, ${span(change.openSeconds)}` : span(change.allAfterSeconds),
        change.halfAfterSeconds === null ? "" : make("div", { class: "small", text: `half ${span(change.halfAfterSeconds)}` })));
  });
  if (!rows.length) rows.push(make("tr", {}, make("td", { colspan: "5", text: "No change has been seen yet." })));
  document.querySelector("#waterfall tbody").replaceChildren(...rows);
}

function services(state) {
  const rows = state.services.list.map((service) => make("tr", { "data-service": service.name },
    make("th", { scope: "row" }, service.name, make("div", { class: "small", text: [service.type, service.clusterIP].filter(Boolean).join(" ") })),
    make("td", { class: "number", text: service.ready }),
    make("td", { class: service.notReady ? "number bad" : "number", text: service.notReady }),
    make("td", { class: "number", text: service.servingTerminating }),
    make("td", { class: "number", text: service.terminating }),
    make("td", { class: service.everywhere ? "good" : "bad", text: service.everywhere ? "yes" : "not yet" })));
  document.querySelector("#services tbody").replaceChildren(...rows);
  const hidden = state.services.total - state.services.list.length;
  say("services-note", hidden > 0 ? `and ${hidden} more` : "");
}

function nodes(state) {
  const rows = state.programmers.list.map((node) => make("tr", { "data-node": node.name },
    make("th", { scope: "row", text: node.name }),
    make("td", {}, make("span", { class: node.behind || node.state !== "live" ? "bad" : "good", text: node.behind && node.state === "live" ? "behind" : node.state }),
      node.problem ? make("div", { class: "small", text: node.problem }) : "",
      node.faults ? make("div", { class: "small bad", text: `${plural(node.faults, "fault", "faults")}, last: ${node.lastFault}` }) : ""),
    make("td", { class: "number", text: node.watermark.endpointSlices }),
    make("td", { class: "number", text: `${span(node.lastSeenSeconds)} ago` }),
    make("td", { class: "number", text: node.clockAheadSeconds === null ? "–"
      : `${(node.clockAheadSeconds * 1000).toFixed(1)} ± ${(node.clockErrorSeconds * 1000).toFixed(1)} ms` })));
  for (const name of state.programmers.plainNames) {
    rows.push(make("tr", { "data-node": name }, make("th", { scope: "row", text: name }),
      make("td", { colspan: "4", text: "tells latencies but no watermark" })));
  }
  document.querySelector("#nodes tbody").replaceChildren(...rows);
}

function gates(state) {
  const waiting = state.gates.waiting.map((gate) => make("li", {},
    make("span", { class: "stage wait", text: "waits" }), make("strong", { text: gate.about }),
    ` ${gate.reason}, ${span(gate.waitedSeconds)} of at most ${span(gate.boundSeconds)}`,
    gate.behind.length ? make("span", { class: "bad", text: `: ${gate.behind.join(", ")}` }) : ""));
  const recent = state.gates.recent.slice(0, 6).map((gate) => make("li", {},
    make("span", { class: gate.outcome === "bound" ? "stage" : "stage done", text: gate.outcome }), gate.about,
    make("span", { class: "small", text: ` after ${span(gate.waitedSeconds)}` }),
    gate.behind.length ? make("span", { class: "small bad", text: ` without ${gate.behind.join(", ")}` }) : ""));
  const all = [...waiting, ...recent];
  if (!all.length) all.push(make("li", { class: "small", text: "No pod has been stopped yet." }));
  $("gates").replaceChildren(...all);
}

function profile(state) {
  const { profile } = state;
  if (!profile) { $("profile").replaceChildren(make("p", { class: "small", text: "No profile is set: the defaults are in force." })); return; }
  const rows = profile.conditions.map((condition) => make("li", {},
    make("span", { class: condition.type.endsWith("Degraded") && condition.status === "True" ? "stage" : condition.status === "True" ? "stage done" : "stage wait", text: condition.status }),
    make("strong", { text: condition.type }), ` ${condition.reason}`,
    make("div", { class: "small", text: condition.message })));
  $("profile").replaceChildren(make("p", {}, "Wanted: ", make("strong", { text: profile.name || "Default" })), make("ul", { class: "plain" }, ...rows));
}

let held = false;
let waitingState = null;

export function show(state) {
  if (held) { waitingState = state; return; }
  for (const part of [summary, cards, day, lagging, waterfall, services, nodes, gates, profile]) part(state);
  document.body.dataset.time = state.time;
}

function connection(text, lost) {
  say("connection", text);
  if (lost) $("connection").dataset.lost = ""; else delete $("connection").dataset.lost;
}

function follow() {
  const source = new EventSource("api/v1/events");
  const receive = (event) => { connection("live"); show(JSON.parse(event.data)); };
  source.onmessage = receive;
  source.addEventListener("state", receive);
  source.onopen = () => connection("live");
  // The browser connects again by itself; until then what is shown is old, and says so.
  source.onerror = () => connection(`connection lost, showing ${document.body.dataset.time ?? "nothing"}`, true);
}

$("hold").addEventListener("click", () => {
  held = !held;
  $("hold").setAttribute("aria-pressed", String(held));
  if (!held && waitingState) { show(waitingState); waitingState = null; }
});
follow();
