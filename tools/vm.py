#!/usr/bin/env python3
"""Runs a command under Debian's own kernel, with cgroup v2 and all of its modules, and gives its exit status back.

  tools/vm.py [--cpus 2] [--memory 4096] -- COMMAND...

For tests of what the kernel of this machine lacks: ip_vs, controllers of cgroup v2, an older nf_tables. The virtual
machine has this machine's files under a layer in memory, so that programs, libraries and what was built are there at the
same paths, and nothing that is written in it stays. /tmp and /run are empty in it. It has no network but its loopback. The
command runs as root, in the same directory, with PATH, HOME and the variables of cargo and of tests.

Needed are root, qemu, a static busybox and kmod, of Debian or a relative; the kernel is downloaded by apt-get, unpacked
in target/vm and not installed.
"""

import argparse
import gzip
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = ROOT / "target" / "vm"
PACKAGES = {
    "qemu-system-x86": "/usr/bin/qemu-system-x86_64",
    "busybox-static": "/bin/busybox",
    "kmod": "/sbin/modprobe",
}
# What it takes to reach this machine's files; all other modules are loaded from there when they are asked for.
MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console"]
VARIABLES = ("PATH", "HOME", "LANG", "CARGO", "RUST", "NEXTEST", "POINTSMAN_", "PEER_")
# No status means that the machine ended without the command: the kernel's lines say why.
NO_STATUS = 125

# The first process, from the initramfs.
INIT = """#!/bin/busybox sh
export PATH=/bin
for name in mount mkdir insmod switch_root ln; do busybox ln -s busybox /bin/$name; done
mkdir -p /proc /lower /upper /host
mount -t proc proc /proc
for module in $(busybox cat /modules); do insmod /$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /lower
mount -t tmpfs -o size=75% upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /host
for place in proc sys dev run tmp; do mkdir -p /host/$place; done
mount -t proc proc /host/proc
mount -t sysfs sysfs /host/sys
mount -t devtmpfs dev /host/dev
mount -t tmpfs -o mode=755 run /host/run
mount -t tmpfs tmp /host/tmp
mkdir /host/run/vm
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none exchange /host/run/vm
exec switch_root /host /bin/sh /run/vm/machine
"""

# What a started machine has before the command begins. It has no service manager, so this shell stays to collect orphans.
MACHINE = """
mkdir -p /dev/pts /dev/shm /lib/modules
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
ln -sf /proc/self/fd /dev/fd
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for name in $(cat /sys/fs/cgroup/cgroup.controllers); do echo +$name > /sys/fs/cgroup/cgroup.subtree_control; done
mkdir /sys/fs/cgroup/command
mount --bind {modules} /lib/modules
busybox ip link set lo up
busybox hostname vm
ulimit -n 1048576
sh -c 'echo $$ > /sys/fs/cgroup/command/cgroup.procs; exec sh /run/vm/command' < /dev/null > /dev/hvc0 2>&1
echo $? > /run/vm/status
busybox poweroff -f
"""


def kernel():
    """The newest kernel that the machine's sources of packages have: its file, and the directory of its modules."""
    found = sorted(PLACE.glob("kernel/boot/vmlinuz-*"))
    if not found:
        archives = PLACE / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        depends = subprocess.run(
            ["apt-cache", "depends", "--important", "linux-image-amd64"], check=True, text=True, stdout=subprocess.PIPE
        ).stdout
        package = next(line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line)
        print(f"downloading {package}", file=sys.stderr)
        # As its own user apt cannot write here.
        download = ["apt-get", "-qq", "-oAPT::Sandbox::User=root", "download", package]
        subprocess.run(download, cwd=archives, check=True)
        (archive,) = archives.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, PLACE / "kernel"], check=True)
        archive.unlink()
        found = sorted(PLACE.glob("kernel/boot/vmlinuz-*"))
    version = found[-1].name.removeprefix("vmlinuz-")
    modules = PLACE / "kernel/lib/modules" / version
    if not (modules / "modules.dep.bin").exists():
        subprocess.run(["depmod", "--basedir", PLACE / "kernel", version], check=True)
    return found[-1], modules


def initramfs(modules):
    """An archive with busybox, the modules that come first and the script above, as the kernel unpacks it."""
    files = {"init": INIT.encode(), "bin/busybox": pathlib.Path("/bin/busybox").read_bytes()}
    order = []
    for name in MODULES:
        ask = ["modprobe", "--dirname", PLACE / "kernel", "--set-version", modules.name, "--show-depends", name]
        # Lines are `insmod PATH`, dependencies first, or `builtin NAME`.
        for line in subprocess.run(ask, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines():
            verb, path = line.split()
            path = pathlib.Path(path)
            if verb == "insmod" and path.name not in order:
                order.append(path.name)
                files[path.name] = path.read_bytes()
    files["modules"] = "\n".join(order).encode()
    entries = [("bin", 0o40755, b""), *((name, 0o100755, data) for name, data in sorted(files.items()))]
    archive = b"".join(entry(name, mode, data) for name, mode, data in entries) + entry("TRAILER!!!", 0, b"")
    return gzip.compress(archive, 1)


def entry(name, mode, data):
    """One file of a cpio archive of the kind `newc`.

    >>> entry("a", 0o100755, b"xyz")[:6], len(entry("a", 0o100755, b"xyz"))
    (b'070701', 116)
    """
    path = name.encode() + b"\0"
    numbers = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0]
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + path
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def acceleration():
    """Without a processor that helps, or on a kernel whose /dev/kvm runs kernels of its own kind only, qemu translates."""
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    helps = "vmx" in flags or "svm" in flags
    # Not all hosts let machines see what the processor says of itself in these MSRs.
    return ["kvm", "-cpu", "host,-arch-capabilities"] if helps and os.path.exists("/dev/kvm") else ["tcg,thread=multi", "-cpu", "max"]


def script(command):
    """The command with its directory and variables, for the machine's shell."""
    names = [name for name in os.environ if name.startswith(VARIABLES)]
    lines = [f"export {name}={shlex.quote(os.environ[name])}" for name in names]
    return "\n".join([*lines, f"cd {shlex.quote(os.getcwd())}", f"exec {shlex.join(command)}", ""])


def run(arguments):
    image, modules = kernel()
    with tempfile.TemporaryDirectory() as place:
        exchange = pathlib.Path(place, "exchange")
        exchange.mkdir()
        (exchange / "machine").write_text(MACHINE.format(modules=shlex.quote(str(modules.parent))))
        (exchange / "command").write_text(script(arguments.command))
        ramdisk, console = pathlib.Path(place, "initramfs"), pathlib.Path(place, "console")
        ramdisk.write_bytes(initramfs(modules))
        share = "local,security_model=none,multidevs=remap"
        machine = f"""qemu-system-x86_64 -machine q35 -smp {arguments.cpus} -m {arguments.memory}
            -nodefaults -no-user-config -display none -no-reboot -kernel {image} -initrd {ramdisk}
            -virtfs {share},path=/,mount_tag=host,readonly=on -virtfs {share},path={exchange},mount_tag=exchange
            -serial file:{console} -device virtio-serial-pci -chardev stdio,id=output,signal=on -device virtconsole,chardev=output
            """.split()
        words = "console=ttyS0 loglevel=4 panic=-1 no_timer_check cgroup_no_v1=all"
        subprocess.run([*machine, "-accel", *acceleration(), "-append", words], check=False, stdin=subprocess.DEVNULL)
        lines = [line for line in console.read_text(errors="replace").splitlines() if not line.endswith("Power down")]
        if lines:
            print("the kernel of the virtual machine said:", *lines, sep="\n", file=sys.stderr)
        status = exchange / "status"
        return int(status.read_text()) if status.exists() else NO_STATUS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--memory", type=int, default=4096, help="MiB")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    missing = [package for package, path in PACKAGES.items() if not os.path.exists(path)]
    if missing:
        sys.exit(f"vm.py needs what is not installed: apt-get install --no-install-recommends {' '.join(missing)}")
    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
