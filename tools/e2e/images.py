"""The images that the specs' pods run from, made of this machine's files: nothing is pulled.

A docker archive holds a small root with the usual tools and their libraries, busybox for the rest, and upstream's agnhost."""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile

# What scripts of the specs call, of Debian's packages.
PROGRAMS = """bash cat cp date dd echo env false head hostname id kill ln ls mkdir mv printf ps pwd rm seq sleep sort stat tail
 tee test timeout touch tr true uname wc grep sed find xargs curl wget nc dig nslookup host ip ss conntrack getent""".split()


def libraries(path):
    """Shared libraries of a program, with their loader."""
    out = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", out)


def which(name):
    for directory in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        path = f"{directory}/{name}"
        if os.path.exists(path):
            return path
    raise SystemExit(f"{name} is missing: make e2e installs what it is in")


class Layer:
    """A layer's archive, the same bytes for the same files."""

    def __init__(self):
        self.entries = {}

    def directory(self, path, mode=0o755):
        info = tarfile.TarInfo(path)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self.entries[path] = (info, None)

    def link(self, path, to):
        info = tarfile.TarInfo(path)
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, to, 0o777
        self.entries[path] = (info, None)

    def data(self, path, data, mode=0o644):
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(data), mode
        self.entries[path] = (info, data)

    def file(self, path, source):
        with open(source, "rb") as file:
            self.data(path, file.read(), 0o755)

    def bytes(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for path in sorted(self.entries):
                info, data = self.entries[path]
                archive.addfile(info, io.BytesIO(data) if data is not None else None)
        return out.getvalue()


def root():
    """A root directory in which scripts find their tools."""
    layer = Layer()
    for path in "usr usr/bin usr/lib usr/lib64 etc root var run home proc sys dev".split():
        layer.directory(path)
    layer.directory("tmp", 0o1777)
    layer.directory("var/tmp", 0o1777)
    for path, to in (("bin", "usr/bin"), ("sbin", "usr/bin"), ("usr/sbin", "bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
        layer.link(path, to)
    layer.data("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    layer.data("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    layer.data("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    needed = set()
    for name in PROGRAMS:
        source = which(name)
        layer.file(f"usr/bin/{name}", source)
        needed.update(libraries(source))
    for source in needed:
        target = source.lstrip("/")
        target = target if target.startswith("usr/") else f"usr/{target}"
        layer.directory(os.path.dirname(target))
        layer.file(target, source)
    # Debian's other shells hand no variables on whose names they could not set.
    layer.link("usr/bin/sh", "bash")
    layer.file("usr/bin/busybox", "/bin/busybox")
    for applet in subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
        if f"usr/bin/{applet}" not in layer.entries:
            layer.link(f"usr/bin/{applet}", "busybox")
    return layer.bytes()


def agnhost(program):
    """The program, and what it finds beside it in upstream's image."""
    layer = Layer()
    layer.file("agnhost", program)
    layer.link("agnhost-2", "agnhost")
    layer.directory("uploads")
    with tempfile.TemporaryDirectory() as directory:
        key, certificate = f"{directory}/localhost.key", f"{directory}/localhost.crt"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
                       check=True, stderr=subprocess.DEVNULL)
        for path in (key, certificate):
            with open(path, "rb") as file:
                layer.data(os.path.basename(path), file.read())
    return layer.bytes()


def write(out, tags, layers, entrypoint, command):
    """Writes a docker archive of one image."""
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    config = json.dumps({
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine], "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "config": {"Env": ["PATH=/usr/bin:/bin:/"], "Entrypoint": entrypoint, "Cmd": command, "WorkingDir": "/"},
    }).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": tags, "Layers": [f"{digest}.tar" for digest in digests]}]
    files = [(name, config), ("manifest.json", json.dumps(manifest).encode())]
    files += [(f"{digest}.tar", layer) for digest, layer in zip(digests, layers)]
    with tarfile.open(out, "w") as archive:
        for path, data in files:
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def build(directory, suite, program):
    """Archives of the images that the suite names and that can be made here."""
    names = subprocess.run([suite, "--list-images"], capture_output=True, text=True, check=True).stdout.split()
    tags = lambda words: [name for name in names if re.search(rf"/{words}:", name) and "authenticated" not in name]
    base, tools = root(), agnhost(program)
    archives = []
    for words, layers, entrypoint, command in (
        ("agnhost", [base, tools], ["/agnhost"], ["pause"]),
        ("pause", [base, tools], ["/agnhost", "pause"], None),
        ("(?:busybox|glibc-dns-testing|distroless-iptables)", [base], None, ["sh"]),
        # Where a web server is all that is wanted.
        ("nginx", [base, tools], ["/agnhost", "test-webserver"], None),
    ):
        archives.append(os.path.join(directory, f"{len(archives)}.tar"))
        write(archives[-1], tags(words), layers, entrypoint, command)
    return archives
