#!/usr/bin/env python3
"""Runs upstream's end-to-end specs of the API, of the network, of probes and of nodes against a cluster of `pointsman up`.

  run.py --program pointsman --e2e-test PATH --ginkgo PATH --agnhost PATH [--kubectl PATH] [--group NAME]... [--record]

The cluster has nodes with a containerd each, and its pods run from images that are made of this machine's files.
What came of each spec is compared with specs.txt beside this program: exit code 1 if one that passed now fails."""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

import images

HERE = os.path.dirname(os.path.abspath(__file__))
RECORD = os.path.join(HERE, "specs.txt")

# The groups, by the beginning of the specs' names; of several that fit the first one counts.
GROUPS = {
    "services": r"\[sig-network\] (Services|Service endpoints latency)",
    "networking": r"\[sig-network\] (Networking|NoSNAT|Connectivity|KubeProxy|HostPort|API Server)",
    "traffic": r"\[sig-network\] (Traffic Distribution|Topology Hints|LocalhostNodePorts)",
    "conntrack": r"\[sig-network\] Conntrack",
    "slices": r"\[sig-network\] Endpoint",
    "dns": r"\[sig-network\] DNS",
    "dual-stack": r"\[sig-network\] \[Feature:IPv6DualStack\]",
    "proxy": r"\[sig-network\] Proxy|\[sig-node\] PreStop",
    "probes": r"\[sig-node\] Probing",
    "hooks": r"\[sig-node\] (Container Lifecycle Hook|Restartable Init Container Lifecycle Hook|Lifecycle )",
    "api": r"\[sig-api-machinery\]",
    "auth": r"\[sig-auth\]",
    "network-api": r"\[sig-network\] (DefaultIngressClass|Ingress|Netpol API|Service ?CIDR)",
    "nodes": r"\[sig-node\] (NoExecuteTaintManager|Lease|NodeLease|Node Lifecycle|Events)",
}

# Specs that want the cluster for themselves, and the ones of these that get it, by the group they are of.
ALONE = r"\[Disruptive\]|\[Serial\]"
ALONE_AFTERWARDS = {"nodes": r"\[sig-node\] NoExecuteTaintManager"}

# Specs that cannot say anything here, and why.
INAPPLICABLE = {
    ALONE: "breaks the cluster for the specs beside it, or wants it for itself",
    r"\[Provider:": "needs machines of a cloud, by ssh",
    r"LoadBalancer|load balancer": "needs a cloud that makes load balancers",
    r"Internet connection": "needs the internet",
    r"[Ss][Cc][Tt][Pp]": "needs the kernel's module sctp",
    r"LocalhostNodePorts": "node ports on loopback are of iptables mode",
    r"KubeProxyNFAcct": "needs the kernel's module nfacct",
    r"\[Feature:OffByDefault\]": "upstream has the feature off by default",
    r"IPerf2|PerformanceDNS": "measures, and needs programs that are not here",
    r"invalid conntrack state bug|configurable pod resolv.conf": "needs an image with a program that is not here",
    # What the API server refuses by design, see docs/api-server.md.
    r"AdmissionWebhook|ConversionWebhook": "webhooks are refused",
    r"ServerSideApply|create/apply|in a CR when preserving|embedded object of a CR": "server-side apply is refused",
    r"CRUD Tests|PodCertificateRequest API operations": "server-side apply is refused, which comes last in these",
    r"AdmissionPolicy .*should (allow|mutate|type|validate)|restrict access by-node": "admission policies are stored only",
    r"CustomResourceValidationRules|CRDValidationRatcheting": "rules in CEL are not evaluated",
    r"ResourceQuota .*(capture|verify|promptly|apply changes)": "quotas are stored only",
    r"API priority and fairness": "classes of requests are not set by objects",
    r"Aggregator|1\.17 [Ss]ample": "there is no aggregation",
    r"aggregated discovery (interface \[|endpoint)|within each APIGroup": "looks for the group of aggregation",
    r"accept \"application/vnd.kubernetes.protobuf\"$": "answers are JSON",
    r"health handlers": "asks for the names of kube-apiserver's own checks",
    r"Feature:StorageVersionAPI": "upstream has the feature off by default, too",
    # What other programs do.
    r"created by (rc|cronjob)|client with a CSR": "needs kube-controller-manager",
    r"Projected PodCertificate|ClusterTrustBundleProjection\] should": "agents do not project certificates into pods",
    r"token rotation": "takes a quarter of an hour",
    r"\[Flaky\]": "upstream calls it flaky",
}


def group(name):
    return next((group for group, pattern in GROUPS.items() if re.match(pattern, name)), None)


def inapplicable(name):
    return next((why for pattern, why in INAPPLICABLE.items() if re.search(pattern, name)), None)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="pointsman")
    parser.add_argument("--e2e-test", required=True)
    parser.add_argument("--ginkgo", required=True)
    parser.add_argument("--agnhost", required=True)
    parser.add_argument("--kubectl", default="kubectl")
    parser.add_argument("--group", action="append", choices=GROUPS, help="all of them if not given")
    parser.add_argument("--focus", help="only specs that this expression finds")
    parser.add_argument("--procs", type=int, default=3, help="specs at once")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--timeout", default="2h", help="for all specs together")
    parser.add_argument("--out", default="target/e2e", help="where logs and the report go")
    parser.add_argument("--record", action="store_true", help="write what came of the specs that ran into specs.txt")
    return parser.parse_args()


class Cluster:
    """A cluster that ends with the block."""

    def __init__(self, program, nodes, family, directory):
        self.program, self.nodes, self.family, self.directory = program, nodes, family, directory

    def run(self, *command):
        subprocess.run([self.program, *command], check=True, stdout=subprocess.DEVNULL)

    def __enter__(self):
        self.run("up", "--name", "e2e", "--runtime", "containerd", "--nodes", str(self.nodes), "--zones", "3",
                 "--ip-family", self.family, "--data-dir", self.directory, "--detach")
        return self

    def load(self, archive):
        self.run("image", "load", "--name", "e2e", archive)

    def kubeconfig(self):
        return os.path.join(self.directory, "admin.kubeconfig")

    def __exit__(self, *_):
        self.run("down", "--name", "e2e")


def play(options, kubeconfig, name, focus, skip, procs):
    """Runs specs; returns the report, whose files have this name."""
    out = os.path.abspath(options.out)
    os.makedirs(out, exist_ok=True)
    command = [options.ginkgo, f"--procs={procs}", f"--timeout={options.timeout}", "--no-color", "--silence-skips",
               f"--focus={focus}", f"--skip={skip}", f"--json-report={name}.json", f"--output-dir={out}", options.e2e_test, "--",
               f"--kubeconfig={kubeconfig}", f"--kubectl-path={options.kubectl}", "--provider=skeleton", f"--num-nodes={options.nodes}",
               "--minStartupPods=0", "--allowed-not-ready-nodes=0", "--node-schedulable-timeout=1m",
               "--system-pods-startup-timeout=1m", "--disable-log-dump=true"]
    with open(os.path.join(out, f"{name}.log"), "w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
    with open(os.path.join(out, f"{name}.json")) as report:
        return json.load(report)


def play_all(options, groups, kubeconfig):
    """Runs the specs of the groups, first those that may run beside each other; returns the reports."""
    focus = options.focus or "|".join(GROUPS[name] for name in groups)
    reports = [play(options, kubeconfig, "report", focus, "|".join(INAPPLICABLE), options.procs)]
    alone = [pattern for name, pattern in ALONE_AFTERWARDS.items() if name in groups]
    if alone and not options.focus:
        skip = "|".join(pattern for pattern in INAPPLICABLE if pattern != ALONE)
        reports.append(play(options, kubeconfig, "alone", "|".join(alone), skip, 1))
    return reports


def specs(reports, groups):
    """The specs of the groups: their names, what came of them, and why."""
    for suite in (suite for report in reports for suite in report):
        for spec in suite["SpecReports"] or []:
            if spec["LeafNodeType"] != "It" or spec["State"] == "pending":
                continue
            name = " ".join([*(spec["ContainerHierarchyTexts"] or []), spec["LeafNodeText"]])
            message = (spec.get("Failure") or {}).get("Message", "")
            if group(name) in groups:
                yield name, spec["State"], " ".join(message.split())


def outcomes(reports, groups):
    """What came of each spec that ran: passed, failed or skipped, and why."""
    for name, state, message in specs(reports, groups):
        if state != "skipped" or message:
            yield name, state if state in ("passed", "skipped") else "failed", message


def show_left_out(reports, groups, found):
    """How many specs of the groups did not run, by reason."""
    names = {name for name, state, message in specs(reports, groups) if name not in found and inapplicable(name)}
    counts = collections.Counter(inapplicable(name) for name in names)
    print("\nleft out")
    for why, count in counts.most_common():
        print(f"{count:7} {why}")


def recorded():
    """The record's lines: a state and a name."""
    if not os.path.exists(RECORD):
        return {}
    with open(RECORD) as lines:
        pairs = (line.rstrip("\n").split(" ", 1) for line in lines if line.strip())
        return {name: state for state, name in pairs}


def show(found):
    counts = collections.defaultdict(collections.Counter)
    for name, (state, message) in sorted(found.items()):
        counts[group(name)][state] += 1
        if state != "passed":
            print(f"{state:8} {name}\n         {message[:300]}")
    print(f"\n{'group':12} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for name in [*(name for name in GROUPS if name in counts), "all"]:
        row = counts[name] if name != "all" else sum(counts.values(), collections.Counter())
        print(f"{name:12} {row['passed']:7} {row['failed']:7} {row['skipped']:8}")


def main():
    options = arguments()
    groups = options.group or list(GROUPS)
    family = "dual" if "dual-stack" in groups else "ipv4"
    with tempfile.TemporaryDirectory(prefix="e2e-", dir="/var/tmp") as directory:
        archives = images.build(directory, options.e2e_test, options.agnhost)
        with Cluster(options.program, options.nodes, family, os.path.join(directory, "data")) as cluster:
            for archive in archives:
                cluster.load(archive)
            reports = play_all(options, groups, cluster.kubeconfig())
    found = {name: (state, message) for name, state, message in outcomes(reports, groups)}
    show(found)
    show_left_out(reports, groups, found)
    before = recorded()
    # What skips itself says why, as when there are too few nodes.
    lost = [name for name in found if before.get(name) == "passed" and found[name][0] == "failed"]
    for name in lost:
        print(f"passed before: {name}")
    if options.record:
        record = before | {name: state for name, (state, _) in found.items()}
        with open(RECORD, "w") as lines:
            lines.writelines(f"{record[name]} {name}\n" for name in sorted(record))
    sys.exit(bool(lost) or not found)


if __name__ == "__main__":
    main()
