// Who needs a look? Services, nodes, gates and the profile: the troubled first, the healthy folded.

import { $, estimate, link, list, make, plural, relink, row, say, set, span, whole } from "./dom.js";

/** Healthy rows that are shown beside the troubled ones before they are folded. */
const HEALTHY = 6;

const body = (id) => document.querySelector(`#${id} tbody`);

export function cards(state) {
  const { sli, programmers, gates } = state;
  for (const name of ["pooled", "exact"]) {
    say(name, estimate(sli[name].p99));
    $(name).dataset.verdict = sli[name].verdict;
  }
  const pending = ({ unfinished }) => unfinished ? ` (${whole(unfinished)} unfinished)` : "";
  say("pooled-note", `p99 of ${plural(sli.pooled.samples, "sample", "samples")}${pending(sli.pooled)}, objective ${span(sli.objectiveSeconds)}`);
  say("exact-note", `p99 of ${plural(sli.exact.samples, "change", "changes")}${pending(sli.exact)}, median ${estimate(sli.exact.p50)}`);
  const { live, silent: mute, stalled, unreachable, plain } = programmers;
  const all = live + mute + stalled + unreachable + plain;
  say("coverage", live === all ? whole(live) : `${whole(live)} of ${whole(all)}`);
  $("coverage").dataset.verdict = mute + stalled ? "missed" : "";
  const states = [[mute, "silent"], [stalled, "stalled"], [unreachable, "unreachable"], [plain, "without watermarks"]].filter(([count]) => count);
  const others = states.map(([count, state]) => `${plural(count, "is", "are")} ${state}`).join(", ") || "all report";
  say("coverage-note", `${others}; coverage ${(sli.pooled.coverage * 100).toFixed(1)} %`);
  say("waiting", whole(gates.waitingTotal));
  const last = gates.recent[0];
  const none = gates.waitingTotal ? "no gate has opened yet" : "none was asked for yet";
  say("waiting-note", last ? `last one waited ${span(last.waitedSeconds)}: ${last.outcome}` : none);
  const today = sli.day;
  say("day", estimate(today.figure));
  $("day").dataset.verdict = today.verdict;
  say("day-note", `${today.verdict}; ${plural(today.minutes.evaluated, "minute", "minutes")} measured, ${today.minutes.quiet} quiet`);
}

export function lagging(state) {
  $("behind").hidden = !state.lagging.length;
  const shown = state.lagging.slice(0, 8);
  list($("lagging"), shown, (lag) => lag.name, (lag) => make("li", {},
    make("span", { class: "stage" }), link("node", lag.name), make("span"), make("span", { class: "small" })),
  (item, lag) => {
    const [stage, name, why, problem] = item.children;
    say(stage, lag.stage);
    relink(name, "node", lag.name);
    say(why, ` ${lag.reason}`);
    say(problem, lag.problem ? ` (${lag.problem})` : "");
  });
  say("lag-title", state.programmers.behind > shown.length ? `Nodes behind: ${whole(state.programmers.behind)}` : "Nodes behind");
}

const STAGES = { api: "change to API", slice: "API to slice", half: "slice to half of the kernels", all: "to the last kernel" };

function shares(id, items, key, head) {
  const most = Math.max(...items.map((item) => item.p99Seconds), 0.001);
  list(body(id), items, key, (item) => {
    const line = row({ label: id === "stages" ? "Stage" : "Node", head: true }, { label: "Share", className: "wide" },
      { label: "p50", className: "number" }, { label: "p99", className: "number" });
    line.children[0].append(head(item));
    line.children[1].append(make("div", { class: "share", "aria-hidden": "true" }, make("i"), make("b")));
    return line;
  }, (line, item) => {
    const [, bar, p50, p99] = line.children;
    bar.firstElementChild.children[0].style.width = `${(item.p99Seconds / most) * 100}%`;
    bar.firstElementChild.children[1].style.left = `${(item.p50Seconds / most) * 100}%`;
    say(p50, span(item.p50Seconds));
    say(p99, span(item.p99Seconds));
  });
}

export function stages(state) {
  const { list: parts, slowestNodes } = state.stages;
  $("where").hidden = !parts.length && !slowestNodes.length;
  shares("stages", parts, (part) => part.stage, (part) => STAGES[part.stage] ?? part.stage);
  shares("slowest", slowestNodes, (node) => node.name, (node) => link("node", node.name));
}

/** Troubled ones, and so many others that a small cluster is seen whole. */
function folded(items, troubled) {
  return items.slice(0, troubled + HEALTHY);
}

export function services(state) {
  const { list: all, troubled, total } = state.services;
  const shown = folded(all, Math.min(troubled, 30));
  list(body("services"), shown, (service) => service.name, (service) => {
    const line = row({ label: "Service", head: true }, { label: "Ready", className: "number" }, { label: "Not ready", className: "number" },
      { label: "Draining", className: "number" }, { label: "Ending", className: "number" }, { label: "Everywhere" });
    line.children[0].append(link("service", service.name), make("div", { class: "small" }));
    line.children[5].append(make("span"), make("div", { class: "small" }));
    return line;
  }, (line, service) => {
    const [name, ready, unready, draining, ending, everywhere] = line.children;
    set(line, { "data-service": service.name });
    relink(name.firstElementChild, "service", service.name);
    say(name.lastElementChild, [service.type, service.clusterIP].filter(Boolean).join(" "));
    say(ready, whole(service.ready));
    say(unready, whole(service.notReady));
    set(unready, { class: service.notReady ? "number bad" : "number" });
    say(draining, whole(service.servingTerminating));
    say(ending, whole(service.terminating));
    say(everywhere.firstElementChild, service.everywhere ? "yes" : "not yet");
    set(everywhere.firstElementChild, { class: service.everywhere ? "good" : service.trouble ? "bad" : "" });
    say(everywhere.lastElementChild, service.everywhere ? service.trouble ?? "" : "");
  });
  rest("services-rest", "service", total - shown.length, "Services");
}

export function nodes(state) {
  const { list: all, troubled, plainNames } = state.programmers;
  const { live, silent, stalled, unreachable } = state.programmers;
  const shown = folded(all, Math.min(troubled, 30));
  const plain = plainNames.map((name) => ({ name, plain: true }));
  list(body("nodes"), [...shown, ...plain], (node) => node.name, (node) => {
    const line = row({ label: "Node", head: true }, { label: "State" }, { label: "p99", className: "number" },
      { label: "Last report", className: "number" }, { label: "Clock", className: "number" });
    line.children[0].append(link("node", node.name));
    line.children[1].append(make("span"), make("div", { class: "small" }));
    return line;
  }, (line, node) => {
    const [, state, p99, seen, clock] = line.children;
    set(line, { "data-node": node.name });
    if (node.plain) {
      say(state.firstElementChild, "plain");
      say(state.lastElementChild, "reports latencies but no watermark");
      return;
    }
    say(state.firstElementChild, standing(node));
    set(state.firstElementChild, { class: standing(node) === "live" ? "good" : "bad" });
    const faults = node.faults ? `${plural(node.faults, "fault", "faults")}, last: ${node.lastFault}` : "";
    say(state.lastElementChild, [node.withdrawn && `no traffic: ${node.withdrawn}`, node.problem, faults].filter(Boolean).join("; "));
    say(p99, node.took ? span(node.took.p99Seconds) : "–");
    say(seen, `${span(node.lastSeenSeconds)} ago`);
    say(clock, offset(node));
  });
  rest("nodes-rest", "node", live + silent + stalled + unreachable - shown.length, "nodes");
}

/** A node's state in a word, the worst there is. */
export function standing(node) {
  return node.state !== "live" ? node.state : node.behind ? "behind" : node.withdrawn ? "withdrawn" : "live";
}

export function offset(node) {
  return node.clockAheadSeconds === null ? "–" : `${(node.clockAheadSeconds * 1000).toFixed(1)} ± ${(node.clockErrorSeconds * 1000).toFixed(1)} ms`;
}

function rest(id, kind, count, what) {
  const fold = $(id);
  fold.hidden = count <= 0;
  say(fold.firstElementChild, `${whole(count)} more ${what}, none of them in trouble`);
  fold.dataset.kind = kind;
}

/** Looks for names once somebody opens a fold or types into it: what is folded is not sent with every update. */
export function listenToFolds() {
  for (const id of ["services-rest", "nodes-rest"]) {
    const fold = $(id), input = fold.querySelector("input");
    const look = async () => {
      const what = id.split("-")[0];
      const answer = await fetch(`api/v1/${what}?${new URLSearchParams({ match: input.value })}`);
      if (!answer.ok) return;
      const { total, list: found } = await answer.json();
      const kind = fold.dataset.kind;
      list(fold.querySelector(".names"), found, (item) => item.name, (item) => make("li", {}, link(kind, item.name)), () => {});
      say(fold.querySelector(".note"), total > found.length ? `and ${whole(total - found.length)} more: type a part of the name` : "");
    };
    fold.addEventListener("toggle", () => { if (fold.open) look(); });
    input.addEventListener("input", look);
  }
}

export function gates(state) {
  const waiting = state.gates.waiting.slice(0, 5).map((gate) => ({ ...gate, waits: true }));
  const recent = state.gates.recent.slice(0, 3);
  const all = [...waiting, ...recent];
  const key = (gate) => gate.waits ? `waits ${gate.about}` : `${gate.at} ${gate.about}`;
  list($("gates"), all.length ? all : [null], (gate) => gate ? key(gate) : "", (gate) => gate
    ? make("li", {}, make("span", { class: "stage" }), make("strong"), make("span"), make("span", { class: "bad" }))
    : make("li", { class: "small", text: "No pod has waited to be stopped." }),
  (item, gate) => {
    if (!gate) return;
    const [stage, about, why, behind] = item.children;
    say(stage, gate.waits ? "waits" : gate.outcome);
    set(stage, { class: gate.waits ? "stage wait" : gate.outcome === "bound" ? "stage" : "stage done" });
    say(about, gate.about);
    say(why, gate.waits ? ` ${gate.reason}, ${span(gate.waitedSeconds)} of at most ${span(gate.boundSeconds)}` : ` after ${span(gate.waitedSeconds)}`);
    say(behind, gate.behind.length ? `${gate.waits ? ": " : " without "}${gate.behind.join(", ")}` : "");
  });
  const more = state.gates.waitingTotal - waiting.length;
  say("gates-title", more > 0 ? `Shutdown gates: ${whole(state.gates.waitingTotal)} wait` : "Shutdown gates");
}

export function profile(state) {
  const { profile } = state;
  say("profile-name", profile ? `Desired: ${profile.name || "Default"}` : "No profile is set: the defaults are in force.");
  list($("profile"), profile?.conditions ?? [], (condition) => condition.type, () => make("li", {},
    make("span", { class: "stage" }), make("strong"), make("span"), make("div", { class: "small" })),
  (item, condition) => {
    const [status, type, reason, message] = item.children;
    const bad = condition.type.endsWith("Degraded") && condition.status === "True";
    say(status, condition.status);
    set(status, { class: bad ? "stage" : condition.status === "True" ? "stage done" : "stage wait" });
    say(type, condition.type);
    say(reason, ` ${condition.reason ?? ""}`);
    say(message, condition.message ?? "");
  });
}
