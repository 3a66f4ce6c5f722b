"""OCI containers: runc(8) or crun(1) runs programs from a bundle that labkit writes. No image, no registry.

The root file system is the machine's own files, read-only. A container has its own mount, PID, IPC, UTS and (with
cgroups version 2) cgroup namespace, a control group, the capabilities of Docker's default, and Podman's default system
call filter. Its network namespace belongs to the topology, so interfaces and counters are those of the namespace; only
the surroundings of the programs differ.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from labkit.common import packages
from labkit.common.errors import Failed, Unsupported
from labkit.measure.endpoints import exec_client, exec_server
from labkit.measure.endpoints.namespace import Namespace
from labkit.system import machine, process
from labkit.system.temporary_files import machines_files, short_folder

RUNTIMES = ("runc", "crun")
GROUPS = Path("/sys/fs/cgroup")
OURS = "labkit"  # the parent of labkit's control groups
START_S = 20.0
NEW_S = 3.0  # up to this age an empty control group may still get its first program
PLACE = "/run/labkit"  # the folder of the socket, inside the container
# Docker's default (docker-run(1), "Runtime privilege and Linux capabilities").
CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
# The system call filter of Podman and CRI-O, an allow list without io_uring: seccomp.json of containers-common 0.50.1
# (Apache-2.0), unchanged as Debian 12 ships it in golang-github-containers-common. It derives from Docker's.
PROFILE = Path(__file__).with_name("seccomp.json")
_ARCHITECTURES = {"x86_64": ("amd64", "SCMP_ARCH_X86_64"), "aarch64": ("arm64", "SCMP_ARCH_AARCH64")}
_TMPFS = {"type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]}


class Container:
    """A running container in a network namespace: the folder of its socket, and its columns for rows."""

    def __init__(self, space: Namespace, folder: Path, runtime: str) -> None:
        self.name = space.name
        self.kernel = space  # whose files show the same as those of the container
        self.folder = folder
        self.shared_folder: tuple[Path, str] | None = (folder, PLACE)
        self.report: dict[str, Any] = {"container_runtime": runtime}

    @property
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program in it."""
        return [sys.executable, "-I", "-S", exec_client.__file__, str(self.folder), "--"]


def runtime() -> str:
    """Return the path of runc or crun. Raises Unsupported if there is neither."""
    result = [path for name in RUNTIMES if os.path.isabs(path := machine.program(name))]
    if not result:
        raise Unsupported(
            f"containers need runc or crun, and neither is installed: {packages.install('runc')}, or leave"
            " endpoint=container out"
        )
    return result[0]


def version(path: str) -> str:
    """Return name and version of a runtime, for example `runc 1.1.5+ds1`."""
    words = process.output([path, "--version"]).split()
    return f"{Path(path).name} {words[2] if len(words) > 2 else '?'}"


@contextmanager
def containers(spaces: Sequence[Namespace]) -> Iterator[list[Container]]:
    """Run a container in each of these network namespaces, with the same name, until the block ends.

    Raises Unsupported without runc and crun, Failed with their error message if they cannot start a container.
    """
    path = runtime()
    runtime_version = version(path)
    _remove_empty_groups()
    with short_folder("labkit-oci-") as scratch, ExitStack() as stack:
        stack.callback(_remove_empty_groups, scratch.name[-8:])
        root = stack.enter_context(machines_files())
        made: list[tuple[Container, process.Running]] = []
        for space in spaces:
            bundle = scratch / space.name
            bundle.mkdir()
            own = Container(space, bundle, runtime_version)
            (bundle / "config.json").write_text(json.dumps(config(own, root)))
            words = [path, "--root", str(scratch / "state")]
            name = f"{OURS}-{os.getpid()}-{scratch.name[-8:]}-{space.name}"
            # Registered before the start, because a failed start may leave a half-made container.
            stack.callback(process.run, [*words, "delete", "--force", name])
            pid = bundle / "pid"
            argv = [*words, "run", "--detach", "--pid-file", str(pid), "--bundle", str(bundle), name]
            [started] = stack.enter_context(process.all_ended([process.Running(argv)]))
            late = bool(process.wait([started], time.monotonic() + START_S))
            if late or not pid.exists():
                started.kill()
                raise Failed(started.ended(late).message())
            made.append((own, started))
        for own, started in made:
            _wait(own, started)
        yield [own for own, _started in made]


def _wait(own: Container, started: process.Running) -> None:
    """Wait until the container accepts conversations.

    Its program writes on the same standard error as the runtime, which is `started`.
    """
    deadline = time.monotonic() + START_S
    while not (own.folder / exec_client.SOCKET).exists():
        if not _runs((own.folder / "pid").read_text()):
            last = started.ended().stderr.strip().splitlines()[-1:]
            raise Failed(
                f"the container {own.name} ended before it was ready: {' '.join(last) or 'without a message'}"
            )
        if time.monotonic() > deadline:
            raise Failed(f"the container {own.name} was not ready within {START_S:.0f} s")
        time.sleep(0.002)


def _runs(pid: str) -> bool:
    """Return whether a process exists and has not ended (proc(5): the state follows the name in brackets)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def config(own: Container, root: Path) -> dict[str, Any]:
    """Return the configuration of its bundle (OCI Runtime Specification 1.0)."""
    capabilities = [f"CAP_{name}" for name in CAPABILITIES]
    kinds: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        kinds.append({"type": "cgroup"})
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", **_TMPFS, "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/dev/shm", **_TMPFS},
        {"destination": "/run", **_TMPFS},
        {"destination": PLACE, "type": "bind", "source": str(own.folder), "options": ["bind", "rw"]},
    ]  # fmt: skip
    program = [sys.executable, "-I", "-S", exec_server.__file__]
    return {
        "ociVersion": "1.0.2",
        "hostname": own.name,
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [*program, "socket", f"{PLACE}/{exec_client.SOCKET}"],
            "env": [f"PATH={os.environ.get('PATH', os.defpath)}", "LC_ALL=C.UTF-8", "TMPDIR=/dev/shm"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        },
        "mounts": mounts,
        "linux": {
            "namespaces": [*kinds, {"type": "network", "path": f"/proc/{os.getpid()}/fd/{own.kernel.fd}"}],
            "cgroupsPath": f"/{OURS}/{os.getpid()}-{own.folder.parent.name[-8:]}-{own.name}",
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "seccomp": system_call_filter(),
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


def system_call_filter() -> dict[str, Any]:
    """Return PROFILE in the form of a bundle: the rules for this architecture and CAPABILITIES.

    Raises Unsupported for an architecture that labkit does not know.
    """
    if platform.machine() not in _ARCHITECTURES:
        raise Unsupported(f"containers need an x86-64 or arm64 machine, and this one is {platform.machine()}")
    profile = json.loads(PROFILE.read_text())
    short, architecture = _ARCHITECTURES[platform.machine()]
    holds = {"caps": {f"CAP_{name}" for name in CAPABILITIES}, "arches": {short}}
    rules = []
    for rule in profile["syscalls"]:
        wanted, unwanted = rule.get("includes") or {}, rule.get("excludes") or {}
        if any(holds[kind].isdisjoint(names) for kind, names in wanted.items()):
            continue
        if any(not holds[kind].isdisjoint(names) for kind, names in unwanted.items()):
            continue
        kept = {name: rule[name] for name in ("names", "action", "errnoRet", "args") if rule.get(name)}
        rules.append(kept)
    others = {each["architecture"]: each["subArchitectures"] for each in profile["archMap"]}
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [architecture, *others[architecture]],
        "syscalls": rules,
    }


def _remove_empty_groups(own: str | None = None) -> None:
    """Remove labkit's empty control groups, which a killed experiment leaves behind.

    New groups of other experiments (without `own` in their name) stay, because a program may be about to enter them.
    """
    for group in [*GROUPS.glob(f"{OURS}/*/"), *GROUPS.glob(f"*/{OURS}/*/")]:
        with suppress(OSError):
            if (own is not None and f"-{own}-" in group.name) or time.time() - group.stat().st_mtime > NEW_S:
                group.rmdir()
    for above in [*GROUPS.glob(OURS), *GROUPS.glob(f"*/{OURS}")]:
        with suppress(OSError):
            above.rmdir()
