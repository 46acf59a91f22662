#!/usr/bin/env python3
"""What does a whole cluster on this machine cost, and how long does it take?

Usage (as root): tools/bench_up.py PROGRAM [--nodes 3] [--services 100] [--pods 10] [--spread] [--idle 30] [--runtime containerd]

Starts `up`, measures the time to ready, memory and CPU when idle, and of pods that are created one after the other the
time from the request to the watch that shows them running; then, where pods are processes, applies Services with kubectl and takes
the time until everything serves: all endpoints are ready in slices, the kernels of all nodes have them (the
lowest watermark of the collector), and every node gets an answer from every Service.

By default all Services share the same pods, so that there are services x pods endpoints; with --spread each
Service has a Deployment of its own, so that there are as many pods.
"""
import argparse
import base64
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

ASK = r"""
import socket, sys, time
left = set(sys.argv[1:])
while left:
    for address in sorted(left):
        try:
            with socket.create_connection((address, 80), 0.5) as s:
                s.sendall(b"GET / HTTP/1.0\r\n\r\n")
                if s.recv(16).startswith(b"HTTP/1"):
                    left.discard(address)
        except OSError:
            pass
    time.sleep(0.05)
print(time.time())
"""


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--nodes", type=int, default=3)
    arguments.add_argument("--services", type=int, default=100)
    arguments.add_argument("--pods", type=int, default=10)
    arguments.add_argument("--idle", type=float, default=30)
    arguments.add_argument("--spread", action="store_true")
    arguments.add_argument("--runtime", choices=["processes", "containerd"], default="processes")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-up-") as home:
        up = start(options, home)
        try:
            measure(options, home, *up)
        finally:
            up[0].send_signal(signal.SIGTERM)
            up[0].wait()


def start(options, home):
    command = [options.program, "up", "--name", "bench", "--output", "json", "--nodes", str(options.nodes),
               "--runtime", options.runtime]
    process = subprocess.Popen([*command, "--data-dir", home + "/data"], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        facts = json.loads(line)
        if "seconds" in facts:
            print(f"ready: {facts['seconds']:.2f} s, {options.nodes} nodes")
            return process, facts
    sys.exit("it ended before it was ready")


def measure(options, home, process, facts):
    time.sleep(3)
    status = [options.program, "status", "--name", "bench", "--output", "json"]
    memory = json.loads(subprocess.run(status, stdout=subprocess.PIPE, check=True).stdout)[0]["memoryBytes"]
    print(f"memory: {memory / 2**20:.0f} MiB (proportional set size)")
    before = cpu_seconds(process.pid)
    time.sleep(options.idle)
    after = cpu_seconds(process.pid)
    shares = {pid: (name, seconds - before.get(pid, (name, 0))[1]) for pid, (name, seconds) in after.items()}
    total = sum(seconds for _, seconds in shares.values())
    print(f"idle: {100 * total / options.idle:.1f} % of a core over {options.idle:.0f} s")
    for name, seconds in sorted(shares.values(), key=lambda share: -share[1])[:8]:
        print(f"  {100 * seconds / options.idle:5.2f} %  {name}")
    server = Server(facts, home)
    lone_pods(options, server)
    if options.runtime == "processes":
        apply(options, home, facts, server)


def lone_pods(options, server, count=30):
    # Every node has this image, since its sandboxes are made of it.
    container = {"name": "c", "image": "pointsman.io/pause:1"}
    if options.runtime == "processes":
        container = {"name": "c", "image": "host", "command": ["sleep", "3600"]}
    path, took = "/api/v1/namespaces/default/pods", []
    with server.ask(path + "?watch=true") as events:
        for number in range(count):
            name = f"lone-{number}"
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                   "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
            began = time.time()
            server.ask(path, "POST", pod).close()
            seen = map(json.loads, events)
            running = (e for e in seen if e["object"]["metadata"]["name"] == name
                       and e["object"].get("status", {}).get("phase") == "Running")
            next(running)
            took.append(time.time() - began)
    took.sort()
    print(f"{count} pods one after the other, created to running: p50 {1000 * took[count // 2]:.0f} ms, "
          f"slowest {1000 * took[-1]:.0f} ms")
    server.ask(path, "DELETE").close()


def cpu_seconds(root):
    """CPU seconds of a process and all that descend from it."""
    found, parents = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
            words = open(f"/proc/{pid}/cmdline").read().replace("\0", " ").split()
        except OSError:
            continue
        parents[int(pid)] = int(stat[1])
        name = " ".join(words[1:3]) if words else "?"
        found[int(pid)] = (name, (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"))
    def descends(pid):
        while pid and pid != root:
            pid = parents.get(pid, 0)
        return pid == root
    return {pid: value for pid, value in found.items() if descends(pid)}


def apply(options, home, facts, server):
    block = json.load(open(home + "/data/network.json"))["range"]
    second = int(block.split(".")[1]) + 1
    addresses = [f"10.{second}.100.{number + 1}" for number in range(options.services)]
    manifest = home + "/manifest.yaml"
    with open(manifest, "w") as file:
        file.write("\n---\n".join(map(json.dumps, objects(options, addresses))))
    began = time.time()
    asking = [
        subprocess.Popen(["ip", "netns", "exec", node["namespace"], "python3", "-c", ASK, *addresses],
                         stdout=subprocess.PIPE, text=True)
        for node in facts["nodes"]
    ]
    environment = dict(os.environ, KUBECONFIG=facts["kubeconfig"])
    subprocess.run(["kubectl", "apply", "-f", manifest], env=environment, stdout=subprocess.DEVNULL, check=True)
    applied = time.time()
    wanted = options.services * options.pods
    while True:
        ready, version = server.endpoints("web-")
        if ready >= wanted:
            break
        time.sleep(0.1)
    in_slices = time.time()
    while server.watermark(facts["page"]) < version:
        time.sleep(0.05)
    in_kernels = time.time()
    answered = max(float(ask.communicate()[0]) for ask in asking)
    pods = wanted if options.spread else options.pods
    print(f"{options.services} Services x {options.pods} pods ({pods} pods, {wanted} endpoints), since kubectl began:")
    for what, when in [("kubectl ended", applied), ("all ready in slices", in_slices),
                       ("in the kernels of all nodes", in_kernels), ("every Service answers every node", answered)]:
        print(f"  {when - began:6.1f} s  {what}")
    print(f"everything serves: {max(applied, in_kernels, answered) - began:.1f} s")


def objects(options, addresses):
    program = os.path.abspath(options.program)
    container = {
        "name": "web", "image": "host", "command": [program, "serve-http"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
    }
    def deployment(name):
        labels = {"app": name}
        template = {"metadata": {"labels": labels},
                    "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
                "spec": {"replicas": options.pods, "selector": {"matchLabels": labels}, "template": template}}
    items = []
    if not options.spread:
        items.append(deployment("all"))
    for number, address in enumerate(addresses):
        name = f"web-{number}"
        if options.spread:
            items.append(deployment(name))
        spec = {"clusterIP": address, "selector": {"app": name if options.spread else "all"},
                "ports": [{"port": 80, "targetPort": 8080}]}
        items.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
    return items


class Server:
    """The API server, as its administrator."""

    def __init__(self, facts, home):
        text = open(facts["kubeconfig"]).read()
        paths = {}
        for key in ["certificate-authority-data", "client-certificate-data", "client-key-data"]:
            value = re.search(key + r": *\"?([A-Za-z0-9+/=]+)", text).group(1)
            paths[key] = f"{home}/{key}.pem"
            open(paths[key], "wb").write(base64.b64decode(value))
        self.context = ssl.create_default_context(cafile=paths["certificate-authority-data"])
        self.context.load_cert_chain(paths["client-certificate-data"], paths["client-key-data"])
        self.url = facts["server"]

    def endpoints(self, prefix):
        """Ready endpoints in slices of Services whose name begins so, and the newest version of them."""
        with self.ask("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices") as answer:
            slices = json.load(answer)["items"]
        slices = [s for s in slices if s["metadata"]["name"].startswith(prefix)]
        ready = sum(bool(e["conditions"].get("ready")) for s in slices for e in s.get("endpoints") or [])
        return ready, max((int(s["metadata"]["resourceVersion"]) for s in slices), default=0)

    def ask(self, path, method="GET", body=None):
        data = json.dumps(body).encode() if body else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        return urllib.request.urlopen(request, context=self.context)

    def watermark(self, page):
        with urllib.request.urlopen(page + "metrics") as answer:
            text = answer.read().decode()
        name = r'pointsman_sli_watermark_lowest_resource_version\{resource="endpointslices"\} (\S+)'
        found = re.search(name, text)
        return float(found.group(1)) if found else 0


main()
