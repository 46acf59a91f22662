#!/usr/bin/env python3
"""Runs every benchmark at a size that fits into ten minutes, and prints one table: what, target, measured.

Usage (as root): tools/bench.py PROGRAM [BENCH...]

Takes minutes in which nothing else may run on the machine. What the benchmarks print themselves goes to
target/bench/NAME.txt; the full sizes and the peers are in their own targets (`make help`).
"""
import os
import re
import subprocess
import sys
import time

CARGO = [os.environ.get("CARGO", "cargo"), "bench", "--locked", "--quiet", "-p", "pointsman-benches", "--bench"]
# A run that takes longer than so many seconds is ended, and its rows are missing.
LIMIT = 180

# Each run of a benchmark, with `PROGRAM` in the place of the program.
RUNS = {
    "api": "PROGRAM --store embedded",
    "controllers": "PROGRAM --services 2000 --flips 300",
    "nodes": "PROGRAM --seconds 20",
    "dns": "PROGRAM --seconds 5 --changes 200",
    "sli": "PROGRAM --seconds 10",
    "probes": "--quick",
    "exec_cost": "",
    "token_cost": "",
    "readiness": "",
    "proxy": "PROGRAM --modes nftables --sizes 1000x5,20000x5,45000x1 --ours-only 45000",
    "up": "PROGRAM",
    "large": "PROGRAM --store embedded --phase large --quick --out target/bench/large",
    "streams": "PROGRAM --store embedded --phase streams --quick --out target/bench/streams",
    "density": "PROGRAM --quick",
    "kubectl": "PROGRAM --quick",
}
# Runs that are another size or phase of a benchmark that has a run of its own name.
BENCHES = {"large": "api", "streams": "api"}

# Bench, heading of the table (or nothing), first cells of the row, cell, which number in it, target, what it is.
ROWS = [
    ("api", "", ["renew Leases, 64 clients: rate"], 2, 0, "≥ 13000/s", "durable renewals of Leases, 64 clients"),
    ("api", "", ["renew Leases, 64 clients: p99"], 2, 0, "≤ 40 ms", "their p99"),
    ("api", "", ["EndpointSlices over 20 HTTP/2 connections: from answered to seen, p50"], 2, 0, "≤ 1.5 ms",
     "1,000 watchers, answered to seen, p50"),
    ("api", "", ["EndpointSlices over 20 HTTP/2 connections: from answered to seen, p99"], 2, 0, "≤ 100 ms", "p99"),
    ("api", "", ["EndpointSlices over 20 HTTP/2 connections: lost"], 2, 0, "≤ 0", "changes lost, doubled or disordered"),
    ("api", "", ["first list, one client"], 2, 0, "≤ 300 ms", "list of 50,000 EndpointSlices"),
    ("api", "", ["resident memory after that / their JSON"], 2, 0, "≤ 4 x", "memory against their JSON"),
    ("controllers", "one pod of", ["pod patch answered to slice seen on a watch, p50"], 1, 0, "≤ 1.5 ms",
     "a pod of 10,000 in 2,000 Services flips, patch answered to slice seen, p50"),
    ("controllers", "one pod of", ["p99"], 1, 0, "≤ 5 ms", "p99"),
    ("controllers", "a Service with", ["CPU of the loops per flip"], 1, 0, "≤ 1 ms", "one of 10,000 endpoints flips, CPU"),
    ("controllers", "a Service with", ["pod patch answered to slice seen"], 1, 0, "≤ 5 ms",
     "patch answered to slice seen, longest of its flips"),
    ("controllers", "", ["memory per pod"], 1, 0, "≤ 1024 B", "memory per pod, of 10,000"),
    ("nodes", "", ["leases every 10 s, status every 5 min: CPU"], 2, 0, "≤ 1 %", "heartbeats of 5,000 nodes, of a core"),
    ("dns", "", ["address of a Service: questions"], 2, 0, "≥ 20000/s", "names of 1,000 Services answered on one core"),
    ("dns", "", ["slice written (answered) to answer"], 2, 1, "≤ 10 ms", "slice written to answer, p99"),
    ("sli", "", ["lines folded"], 3, 0, "≥ 100000/s", "lines folded of 5,000 programmers, 8 relays"),
    ("sli", "", ["commit to fold, p99"], 3, 0, "≤ 100 ms", "commit to fold, p99"),
    ("sli", "", ["collector CPU with OTLP"], 3, 0, "≤ 5 %", "100 changes/s, each sent as a trace, of a core"),
    ("probes", "", ["1000 HTTP at 200 ms"], 6, 0, "≤ 20 %", "1,000 HTTP probes at 200 ms, of a core"),
    ("probes", "", ["10000 HTTP at 200 ms (default budget)"], 5, 0, "≤ 20 ms", "10,000 as the budget allows, jitter p99"),
    ("exec_cost", "", ["through the shim"], 1, 1, "≤ 0.227 ms", "CPU of the agent per exec probe (220/s in 5 % of a core)"),
    ("token_cost", "", ["whole, signature remembered"], 1, 1, "≤ 50 µs", "a token verified"),
    ("readiness", "", ["200 ms", "200 to 503"], 3, 1, "≤ 15 ms", "probe's answer to API, 200 pods, p99"),
    ("proxy", "", ["45000 x 1", "pointsman"], 2, 0, "≤ 0.6 s", "cold start, 45,000 x 1"),
    ("proxy", "", ["45000 x 1", "pointsman"], 4, 0, "≤ 0.5 s", "restart on a correct table, 45,000 x 1"),
    ("proxy", "", ["45000 x 1", "pointsman"], 10, 0, "≤ 40 MiB", "resident memory, 45,000 x 1"),
    ("proxy", "", ["20000 x 5", "pointsman"], 5, 1, "≤ 1.5 ms", "an endpoint changes at 20,000 x 5, p99"),
    ("proxy", "", ["20000 x 5", "pointsman"], 10, 0, "≤ 40 MiB", "resident memory, 20,000 x 5"),
    ("up", "", ["ready"], 1, 0, "≤ 1 s", "`up` with 3 nodes, to ready"),
    ("up", "", ["memory"], 1, 0, "≤ 100 MiB", "its memory"),
    ("up", "", ["idle"], 1, 0, "≤ 3 %", "its CPU when idle, of a core"),
    ("up", "", ["everything serves"], 1, 0, "≤ 10 s", "100 Services, `kubectl apply` to all serving"),
    ("large", "", ["resident memory after that"], 2, 0, "≤ 268 MB", "100,000 objects, a tenth of the full size: memory"),
    ("large", "", ["start again after SIGTERM"], 2, 0, "≤ 1000 ms", "restart after SIGTERM, until ready"),
    ("large", "", ["start again after kill -9"], 2, 0, "≤ 1000 ms", "restart after kill -9, until ready"),
    ("large", "", ["list of the 5000 EndpointSlices: median"], 2, 0, "≤ 30 ms", "list of 5,000 EndpointSlices among them"),
    ("streams", "", ["ConfigMaps, a TLS connection each: from answered to seen, p99"], 2, 0, "≤ 250 ms",
     "500 watches, a TLS connection each, answered to seen, p99"),
    ("streams", "", ["ConfigMaps, a TLS connection each: lost"], 2, 0, "≤ 0", "changes lost, doubled or disordered"),
    ("density", "", ["first pod sent to all ready"], 2, 0, "≥ 500/s", "4,000 pods on 200 hollow nodes, created to ready and in slices"),
    ("density", "", ["pods that are not ready"], 2, 0, "≤ 0", "pods lost or at a wrong address"),
    ("density", "", ["the most of both"], 2, 0, "≤ 1024 MiB", "memory of API server and loops"),
]


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    program, chosen = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(RUNS)
    unknown = [name for name in chosen if name not in RUNS]
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(RUNS)}")
    os.makedirs("target/bench", exist_ok=True)
    print(f"load before: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    printed = {name: run(name, program) for name in chosen}
    print("| bench | what | target | measured | |\n|---|---|--:|--:|---|")
    missed = 0
    for bench, heading, row, cell, number, target, what in ROWS:
        if bench not in chosen:
            continue
        value = find(printed[bench], heading, row, cell, number)
        verdict = judge(value, target)
        missed += verdict != ""
        print(f"| {bench} | {what} | {target} | {value or '–'} | {verdict} |")
    sys.exit(f"{missed} rows miss their targets" if missed else 0)


def run(name, program):
    """What the benchmark prints; also what it had printed when its time was over."""
    began, path = time.monotonic(), f"target/bench/{name}.txt"
    arguments = [program if word == "PROGRAM" else word for word in RUNS[name].split()]
    command = ["tools/bench_up.py", *arguments] if name == "up" else [*CARGO, BENCHES.get(name, name), "--", *arguments]
    with open(path, "w") as output:
        try:
            subprocess.run(command, stdout=output, stderr=subprocess.DEVNULL, timeout=LIMIT, check=True)
            outcome = "done"
        except subprocess.TimeoutExpired:
            outcome = f"ended after {LIMIT} s"
        except subprocess.CalledProcessError as error:
            outcome = f"failed with {error.returncode}"
    print(f"{name}: {outcome}, {time.monotonic() - began:.0f} s, {path}", file=sys.stderr)
    return open(path).read()


def find(text, heading, row, cell, number):
    """A number with its unit.

    >>> table = "| flips | |\\n|---|--:|\\n| time, p50 | **2.26 ms** |\\n| both | 1.5 / 30 ms |\\nready: 0.29 s, 3 nodes"
    >>> find(table, "flips", ["time, p50"], 1, 0), find(table, "", ["both"], 1, 1), find(table, "", ["ready"], 1, 0)
    ('2.26 ms', '30 ms', '0.29 s')
    >>> find(table, "drops", ["time, p50"], 1, 0), find(table, "", ["time, p50"], 1, 3)
    (None, None)
    """
    inside = not heading
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [part.strip().strip("*") for part in line.strip("|").split("|")]
        else:
            cells = [part.strip() for part in line.split(": ", 1)]
        inside = inside or cells[0].startswith(heading)
        if inside and len(cells) > cell and all(map(str.startswith, cells, row)):
            numbers = re.findall(r"([\d.,]*\d)(/s|[ ]?(?:[a-zA-Zµ%]+))?", cells[cell])
            if number < len(numbers):
                return "".join(numbers[number]).replace(",", "")
    return None


def judge(value, target):
    """
    >>> judge("2.26 ms", "≤ 1.5 ms"), judge("9000/s", "≥ 8000/s"), judge(None, "≤ 1 s"), judge("400 µs", "≤ 1 ms")
    ('missed', '', 'not measured', '')
    """
    if value is None:
        return "not measured"
    bound = float(re.search(r"[\d.]+", target).group())
    scale = {"s": 1e3, "ms": 1, "µs": 1e-3, "ns": 1e-6}
    number, unit = re.match(r"([\d.]+) ?(.*)", value).groups()
    wanted = re.search(r"[\d.]+ ?(.*)", target).group(1)
    number = float(number)
    if unit in scale and wanted in scale:
        number, bound = number * scale[unit], bound * scale[wanted]
    return "" if (number <= bound if target.startswith("≤") else number >= bound) else "missed"


if __name__ == "__main__":
    main()
