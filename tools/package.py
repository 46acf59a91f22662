#!/usr/bin/env python3
"""Makes what is shipped from a built program: an OCI image, a Debian package, a list of what is inside.

  package.py image --program ARCH=PATH [--program ARCH=PATH] --out dist/pointsman-image.tar
  package.py deb   --program ARCH=PATH --out dist
  package.py sbom  --out dist/pointsman.cdx.json [--image ARCH]

No daemon and no root: an image is two archives and some JSON. The lower archive holds the iptables programs, which
iptables mode runs, with the libraries they need, out of Debian's packages; there is no shell in it. The same input
gives the same bytes.
"""

import argparse
import gzip
import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import tarfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
# What the image needs from Debian; apt adds what these need.
PACKAGES = ["iptables"]
# Nobody reads them in a container. Licences stay.
LEFT_OUT = ("./usr/share/man/", "./usr/share/locale/", "./usr/share/lintian/", "./usr/share/bug/")
# Debian's alternatives, which its maintainer scripts would set up.
LINKS = {
    f"usr/sbin/{family}tables{what}": f"{family}tables-nft{what}"
    for family in ("ip", "ip6")
    for what in ("", "-save", "-restore")
}


def debian(arch):
    """The packages of this architecture, as files; the machine's own state of packages is left alone."""
    home = ROOT / "target" / "image" / arch
    for folder in ("state/lists/partial", "cache/archives/partial", "log"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "state/status").touch()
    settings = {
        "Dir::State": home / "state",
        "Dir::State::status": home / "state/status",
        "Dir::Cache": home / "cache",
        "Dir::Log": home / "log",
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
    }
    apt = ["apt-get", "-qq"] + [f"-o{key}={value}" for key, value in settings.items()]
    archives = home / "cache/archives"
    if not any(archives.glob("*.deb")):
        subprocess.run(apt + ["update"], check=True)
        subprocess.run(apt + ["--download-only", "-y", "install", *PACKAGES], check=True, stdout=subprocess.DEVNULL)
    return sorted(archives.glob("*.deb"))


def anonymous(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def file(name, data=b"", mode=0o644, link=None):
    member = tarfile.TarInfo(name)
    member.mode, member.size = mode, len(data)
    if link is not None:
        member.type, member.linkname = tarfile.SYMTYPE, link
    return member, data


def base(arch):
    """The lower archive, and the name and version of each package in it."""
    members, packages = {}, []
    for path in debian(arch):
        show = ["dpkg-deb", "--showformat=${Package} ${Version}", "--show", path]
        packages.append(tuple(subprocess.check_output(show, text=True).split()))
        with tarfile.open(fileobj=io.BytesIO(subprocess.check_output(["dpkg-deb", "--fsys-tarfile", path]))) as tar:
            for member in tar:
                if not member.name.startswith(LEFT_OUT) and member.name != ".":
                    data = tar.extractfile(member).read() if member.isreg() else b""
                    members[member.name] = (member, data)
    for name, target in LINKS.items():
        members["./" + name] = file("./" + name, link=target)
    accounts = b"root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"
    members["./etc/passwd"] = file("./etc/passwd", accounts)
    members["./run/"] = file("./run/", mode=0o755)
    members["./run/"][0].type = tarfile.DIRTYPE
    # Folders first: their names are shorter than those of what lies in them.
    return archive(members[name] for name in sorted(members)), packages


def archive(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in members:
            tar.addfile(anonymous(member), io.BytesIO(data))
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Layout:
    """An OCI image layout, written as one archive."""

    def __init__(self):
        self.files = {"oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode()}

    def blob(self, kind, data):
        if not isinstance(data, bytes):
            data = json.dumps(data, sort_keys=True).encode()
        self.files["blobs/sha256/" + digest(data).removeprefix("sha256:")] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    def platform(self, arch, layers):
        config = {
            "architecture": arch,
            "os": "linux",
            "config": {
                "Entrypoint": ["/usr/local/bin/pointsman"],
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                # The proxy has to be root for the kernel's rules, and its manifest says so.
                "User": "65534:65534",
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.blob("config.v1+json", config),
            "layers": [self.blob("layer.v1.tar+gzip", gzip.compress(layer, 6, mtime=0)) for layer in layers],
        }
        return self.blob("manifest.v1+json", manifest) | {"platform": {"architecture": arch, "os": "linux"}}

    def write(self, manifests, name, out):
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
        top = self.blob("index.v1+json", index)
        top["annotations"] = {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        }
        self.files["index.json"] = json.dumps(index | {"manifests": [top]}, sort_keys=True).encode()
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(archive(file(name, data) for name, data in sorted(self.files.items())))


def programs(arguments):
    return {arch: pathlib.Path(path) for arch, path in (each.split("=", 1) for each in arguments.program)}


def image(arguments):
    layout, manifests = Layout(), []
    for arch, program in programs(arguments).items():
        lower, _ = base(arch)
        upper = archive([file("./usr/local/bin/pointsman", program.read_bytes(), 0o755)])
        manifests.append(layout.platform(arch, [lower, upper]))
    layout.write(manifests, arguments.name, arguments.out)
    print(f"{arguments.out}: {arguments.name} for {', '.join(programs(arguments))}")


def deb(arguments):
    for arch, program in programs(arguments).items():
        tree = ROOT / "target" / "deb" / arch
        shutil.rmtree(tree, ignore_errors=True)
        units = tree / "lib/systemd/system"
        for folder in (tree / "DEBIAN", tree / "usr/bin", units, tree / "usr/share/doc/pointsman"):
            folder.mkdir(parents=True)
        shutil.copy(program, tree / "usr/bin/pointsman")
        (tree / "usr/bin/pointsman").chmod(0o755)
        for unit in sorted((ROOT / "deploy/systemd").glob("*.service")):
            shutil.copy(unit, units)
        shutil.copy(ROOT / "LICENSE", tree / "usr/share/doc/pointsman/copyright")
        (tree / "DEBIAN/control").write_text(
            f"Package: pointsman\nVersion: {VERSION}\nArchitecture: {arch}\nMaintainer: The Pointsman authors\n"
            "Section: net\nPriority: optional\nSuggests: iptables\n"
            "Description: service proxy, node agent and API server for Kubernetes\n"
            " One program: `pointsman help` lists its roles. The units are installed and not started.\n"
        )
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, arguments.out], check=True)


def sbom(arguments):
    metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--locked", "--format-version=1"], cwd=ROOT))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    # What is in the program: normal dependencies on Linux, from the program down.
    waiting = [each["id"] for each in metadata["packages"] if each["name"] == "pointsman"]
    found = set()
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        for dependency in nodes[one]["deps"]:
            kinds = [(kind["kind"], kind["target"] or "") for kind in dependency["dep_kinds"]]
            if any(kind is None and not any(far in target for far in ("windows", "macos", "wasm", "apple"))
                   for kind, target in kinds):
                waiting.append(dependency["pkg"])
    components = [
        {
            "type": "library",
            "name": package["name"],
            "version": package["version"],
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
            "licenses": [{"expression": package["license"]}],
        }
        for package in sorted((packages[one] for one in found), key=lambda each: (each["name"], each["version"]))
        if package["source"]
    ]
    for arch in arguments.image:
        components += [
            {"type": "library", "name": name, "version": version, "purl": f"pkg:deb/debian/{name}@{version}?arch={arch}"}
            for name, version in base(arch)[1]
        ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "pointsman", "version": VERSION}},
        "components": components,
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{arguments.out}: {len(components)} components")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for command, out in ((image, "dist/pointsman-image.tar"), (deb, "dist"), (sbom, "dist/pointsman.cdx.json")):
        one = commands.add_parser(command.__name__)
        one.set_defaults(run=command)
        one.add_argument("--out", type=pathlib.Path, default=ROOT / out)
        if command is sbom:
            one.add_argument("--image", action="append", default=[], metavar="ARCH", help="count its packages, too")
        else:
            one.add_argument("--program", action="append", required=True, metavar="ARCH=PATH")
        if command is image:
            one.add_argument("--name", default=f"docker.io/library/pointsman:{VERSION}")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
