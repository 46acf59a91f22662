// What is not everywhere yet, where, and whom does it concern? One document comes in, the page shows it. No library.
//
// What is looked at is in the URL: `service`, `node`, `kind`, `slow`, `from` and `to`. The exact name of a Service or a node
// opens its page.

import { history as showHistory, listen } from "./chart.js";
import { $, clock, link, list, make, plural, row, say, set, span } from "./dom.js";
import { cards, gates, lagging, listenToFolds, nodes, offset, profile, services, stages, standing } from "./lists.js";
import { found, waterfall } from "./waterfall.js";

const FILTERS = ["service", "node", "kind", "slow", "from", "to"];
const filters = $("filters");

let state = null;
let held = false;
let query = new URLSearchParams();
let asking = false;
let askAgain = false;
let seenHistory = null;

function summary() {
  $("summary").dataset.level = state.summary.level;
  const text = state.summary.text;
  say("sentence", text);
  document.title = `${state.summary.level === "ok" ? "" : "● "}${text} · Pointsman`;
}

/** The kinds that there are, as they are met: the program may learn new ones. */
function kinds(changes) {
  const select = filters.elements.kind;
  const known = new Set([...select.options].map((option) => option.value));
  for (const kind of [...changes.map((change) => change.kind), query.get("kind")]) {
    if (kind && !known.has(kind) && known.size < 40) { known.add(kind); select.append(make("option", { value: kind, text: kind })); }
  }
  if (select.value !== (query.get("kind") ?? "")) select.value = query.get("kind") ?? "";
}

function names() {
  const options = (id, items) => list($(id), items, (item) => item.name, (item) => make("option", { value: item.name }), () => {});
  options("service-names", state.services.list);
  options("node-names", state.programmers.list);
}

/** Shows a state; what is shown of it depends on the URL. */
export function show(next) {
  if (next) state = next;
  if (held || !state) return;
  const filtered = [...query.keys()].length > 0;
  summary();
  for (const part of [cards, lagging, stages, services, nodes, gates, profile]) part(state);
  names();
  kinds(state.changes);
  if (!filtered) {
    say("changes-note", "");
    waterfall(state.changes, state.sli.objectiveSeconds, "No change has been seen yet.");
  } else ask();
  if (!document.body.dataset.focus && state.sli.historyTime !== seenHistory) past();
  document.body.dataset.time = state.time;
}

async function past() {
  seenHistory = state.sli.historyTime;
  const answer = await fetch("api/v1/history");
  if (answer.ok) showHistory(await answer.json(), choose);
}

async function read(path) {
  const answer = await fetch(path);
  return answer.ok ? answer.json() : null;
}

/** What the URL asks for: changes, and the Service or node that it names. One question at a time. */
async function ask() {
  if (asking) { askAgain = true; return; }
  asking = true;
  try {
    const service = query.get("service"), node = query.get("node");
    const path = (name) => name.split("/").map(encodeURIComponent).join("/");
    const [changes, one, other] = await Promise.all([
      read(`api/v1/changes?${query}`),
      service?.includes("/") ? read(`api/v1/services/${path(service)}`) : null,
      node ? read(`api/v1/nodes/${path(node)}`) : null]);
    focus(one, other);
    if (changes) {
      say("changes-note", found(changes.matched));
      kinds(changes.changes);
      waterfall(changes.changes, state.sli.objectiveSeconds, "No change fits. Those of the last minutes are kept, and the slowest of the last two hours.");
    }
    document.body.dataset.asked = String(query);
  } finally {
    asking = false;
    if (askAgain) { askAgain = false; ask(); }
  }
}

/** The page of a Service or a node, above its changes. */
function focus(service, node) {
  const kind = service ? "service" : node ? "node" : null;
  if (kind) document.body.dataset.focus = kind; else delete document.body.dataset.focus;
  $("focus").hidden = !kind;
  if (!kind) return;
  const it = service ?? node;
  say("focus-title", `${service ? "Service" : "Node"} ${it.name}`);
  const facts = service ? [
    ["Type", [it.type, it.clusterIP].filter(Boolean).join(" ")],
    ["Endpoints", `${it.ready} ready, ${it.notReady} not ready, ${it.servingTerminating} draining, ${it.terminating} ending`],
    ["Everywhere", it.everywhere ? "yes" : "not yet", it.everywhere ? "good" : "bad"],
    ["Trouble", it.trouble ?? "none", it.trouble ? "bad" : "good"],
    ["Selector", it.selector ?? "none"],
  ] : [
    ["State", standing(it), standing(it) === "live" ? "good" : "bad"],
    ["Traffic", it.withdrawn ? `withdrawn: ${it.withdrawn}` : "in use", it.withdrawn ? "bad" : "good"],
    ["Why", it.reason ?? it.problem ?? "nothing is missing"],
    ["Missing", plural(it.missing, "change", "changes"), it.missing ? "bad" : "good"],
    ["Slice to kernel", it.took ? `p50 ${span(it.took.p50Seconds)}, p99 ${span(it.took.p99Seconds)} of ${plural(it.took.count, "change", "changes")}` : "nothing in the last minutes"],
    ["Last report", `${span(it.lastSeenSeconds)} ago`],
    ["Clock", offset(it)],
    ["Slices up to", String(it.watermark.endpointSlices)],
    ["Services up to", String(it.watermark.services)],
    ["Asked at", it.url ?? "through a relay"],
  ];
  list($("focus-facts"), facts, ([name]) => name, ([name]) => make("div", {}, make("dt", { text: name }), make("dd")), (line, [, text, tone]) => {
    say(line.lastElementChild, text);
    set(line.lastElementChild, { class: tone });
  });
  endpoints(service?.endpoints ?? []);
}

function endpoints(items) {
  const host = $("focus-list");
  if (!host.firstElementChild) {
    const head = (text) => make("th", { scope: "col", text });
    host.append(make("table", { role: "table" }, make("thead", {}, make("tr", {}, head("Pod"), head("Node"), head("State"))), make("tbody")));
  }
  host.hidden = !items.length;
  list(host.querySelector("tbody"), items, (it) => `${it.pod} ${it.node}`, (it) => {
    const line = row({ label: "Pod", head: true }, { label: "Node" }, { label: "State" });
    line.children[0].textContent = it.pod;
    if (it.node) line.children[1].append(link("node", it.node));
    return line;
  }, (line, it) => {
    const out = it.withdrawn ? `no traffic to ${it.node}: ${it.withdrawn}` : "not ready";
    const text = it.terminating ? (it.serving ? "draining" : "ending") : it.ready ? "ready" : out;
    say(line.children[2], text);
    set(line.children[2], { class: it.ready ? "good" : it.terminating ? "" : "bad" });
  });
}

/** Reads the URL into the form, and looks. */
function look() {
  const given = new URLSearchParams(location.search);
  query = new URLSearchParams(FILTERS.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
  for (const name of ["service", "node"]) {
    if (document.activeElement !== filters.elements[name]) filters.elements[name].value = query.get(name) ?? "";
  }
  filters.elements.slow.checked = query.get("slow") === "true";
  const filtered = [...query.keys()].length > 0;
  $("clear").hidden = !filtered;
  $("period").hidden = !query.get("from");
  if (query.get("from")) say("period", `${clock(query.get("from"))} to ${clock(query.get("to") ?? Date.now())}, slowest first`);
  if (!filtered) { focus(null, null); delete document.body.dataset.asked; seenHistory = null; }
  show();
}

/** Goes to a URL with these filters; `replace` while somebody types. */
function go(changed, replace) {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changed)) {
    if (value) next.set(name, value); else next.delete(name);
  }
  const url = `?${next}`;
  if (replace) history.replaceState(null, "", url); else history.pushState(null, "", url);
  look();
}

function choose(from, to) {
  go({ from, to });
  $("changes").focus({ preventScroll: true });
  $("changes").scrollIntoView({ block: "start" });
}

function connection(text, lost) {
  say("connection", text);
  set($("connection"), { "data-lost": lost });
}

function follow() {
  const source = new EventSource("api/v1/events");
  const receive = (event) => { connection("live"); show(JSON.parse(event.data)); };
  source.addEventListener("state", receive);
  source.onopen = () => connection("live");
  // The browser connects again by itself; until then what is shown is old, and says so.
  source.onerror = () => connection(`connection lost, showing ${document.body.dataset.time ? clock(document.body.dataset.time) : "nothing"}`, true);
}

filters.addEventListener("input", () => {
  const { service, node, kind, slow } = filters.elements;
  go({ service: service.value, node: node.value, kind: kind.value, slow: slow.checked ? "true" : "" }, true);
});
filters.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("reset", (event) => { event.preventDefault(); query = new URLSearchParams(); go({}); });
// Links within the page change what is shown without loading it anew.
document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[href^='?']");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  history.pushState(null, "", anchor.getAttribute("href"));
  look();
  scrollTo(0, 0);
});
addEventListener("popstate", look);
$("hold").addEventListener("click", () => {
  held = !held;
  set($("hold"), { "aria-pressed": String(held) });
  say("hold", held ? "Held" : "Hold");
  if (!held) show();
});
listen(choose);
listenToFolds();
look();
follow();
