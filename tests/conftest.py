"""Check what tests need of a machine, and skip them in one way when it is missing.

A test uses the fixture `need("iperf3", "macvlan")`. A whole test, class or module uses `@pytest.mark.needs("iperf3")`.
If this machine does not meet a need, the test is skipped with a sentence. The environment variable LABKIT_NO_SKIP turns
such skips into failures: "1" for all needs, or a comma-separated list of the needs that this machine must meet.

Tests run in parallel in workers of pytest-xdist (`make test`). Each worker has its own network namespace, because
experiments in one namespace wait for each other. One worker runs all tests with lab VMs, one after the other.
"""

import functools
import gc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ci_summary import pytest_runtest_setup as pytest_runtest_setup
from ci_summary import pytest_terminal_summary as pytest_terminal_summary
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "tests/samples"
AS_ROOT = os.geteuid() == 0
IN_A_NAMESPACE = ["unshare", "--net"] if AS_ROOT else ["unshare", "--user", "--map-root-user", "--net"]

# Tests start Python thousands of times. Without its compiled files, each start would compile labkit's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Need = Callable[..., None]


def sample(name: str) -> str:
    """Return the text of a sample."""
    return (SAMPLES / name).read_text()


def works(*argv: str, stdin: str = "") -> bool:
    """Return whether a program exists and succeeds within a minute (a browser's first start is slow)."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def link(kind: str, *links: str) -> tuple[Callable[[], bool], str]:
    """Return the need for a kind of link, tested in a temporary namespace with these arguments of `ip link add`."""
    lines = "".join(f"link add {each}\n" for each in links)
    why = (
        f"no {kind} link can be made: the kernel has none (CONFIG_{kind.upper()}), or this user no namespace"
    )
    return lambda: works(*IN_A_NAMESPACE, "ip", "-batch", "-", stdin=lines), why


def program(*argv: str, package: str = "") -> tuple[Callable[[], bool], str]:
    """Return the need for a program, which this command starts, and the Debian package that has it."""
    return lambda: works(*argv), f"there is no {argv[0]} (Debian package {package or argv[0]})"


@functools.cache
def kernel(flavour: str) -> str | None:
    """Return the release of Debian's newest kernel of a flavour ("cloud", or "" for the full one) that is here.

    Only if none is here, it is fetched: asking apt for a newer one takes half a minute. None without a network.
    """
    from labkit.common.errors import LabkitError
    from labkit.measure.hosts import debian_kernels
    from labkit.system.qemu import kernels

    wanted = f"{flavour}-{debian_kernels.ARCHITECTURE}".removeprefix("-")
    for each in reversed(kernels.installed()):
        if kernels.flavour(each.release) == wanted and os.access(each.image, os.R_OK):
            return each.release
    try:
        return debian_kernels.get(flavour or debian_kernels.ARCHITECTURE, print).release
    except LabkitError:
        return None


def lists_can_be_fetched() -> bool:
    """Return whether apt can fetch its lists. The fetched lists are discarded."""
    with tempfile.TemporaryDirectory() as scratch:
        options = [f"Dir::State::Lists={scratch}", f"Dir::Cache={scratch}", "APT::Update::Error-Mode=any"]
        (Path(scratch) / "partial").mkdir()
        return works("apt-get", *(word for each in options for word in ("-o", each)), "update")


def ovs_in_kernel() -> bool:
    """Return whether this kernel has the datapath of Open vSwitch."""
    from labkit.measure.capabilities import platforms

    return bool(platforms.open_vswitch(None)[0].available)


VETH = "name one type veth peer name two"


def cpu_cgroups() -> list[Path]:
    """Return the cgroups in which a quota can be set: that of cgroup v1, or of v2 with the controller for children."""
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    if (v1 / "cpu.cfs_quota_us").exists() or (v1 / "cgroup.procs").exists():
        return [v1]
    control = v2 / "cgroup.subtree_control"
    return [v2] if control.exists() and "cpu" in control.read_text().split() else []


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "root": (lambda: AS_ROOT, "this user is not root"),
    "policies of IPsec": (
        lambda: works(*IN_A_NAMESPACE, "ip", "xfrm", "policy", "list"),
        "this kernel has no policies of IPsec (CONFIG_XFRM_USER)",
    ),
    "namespaces": (lambda: works(*IN_A_NAMESPACE, "true"), "unshare cannot make a network namespace here"),
    "user namespaces": (
        lambda: works("unshare", "--user", "--map-root-user", "--net", "true"),
        "unshare cannot make a user namespace here",
    ),
    "cpu cgroup": (
        lambda: AS_ROOT and bool(cpu_cgroups()),
        "no cgroup with the CPU controller can be made here (/sys/fs/cgroup)",
    ),
    "iperf3": program("iperf3", "--version"),
    "ip": program("ip", "-V", package="iproute2"),
    "ping": program("ping", "-V", package="iputils-ping"),
    "sockperf": program("sockperf", "--version"),
    "wrk": (
        lambda: works("nginx", "-v") and shutil.which("wrk") is not None,
        "there is no nginx or wrk (Debian packages nginx-light and wrk)",
    ),
    "ethtool": program("ethtool", "--version"),
    "tcpdump": program("tcpdump", "--version"),
    "tshark": program("tshark", "--version"),
    "wg": program("wg", "--version", package="wireguard-tools"),
    "jq": program("jq", "--version"),
    "duckdb": (
        lambda: importlib.util.find_spec("duckdb") is not None,
        "there is no duckdb (pip install 'labkit[dev]')",
    ),
    "nft": program("nft", "--version", package="nftables"),
    "iptables": program("iptables-nft", "--version", package="iptables"),
    "perf": (
        lambda: works("perf", "stat", "--all-cpus", "-e", "cpu-clock", "true"),
        "there is no perf (Debian package linux-perf), or this user may not watch the whole machine",
    ),
    "bpftrace": program("bpftrace", "--version"),
    "perf-tools": (
        lambda: shutil.which("kprobe-perf") is not None,
        "there are no perf-tools (Debian package perf-tools-unstable)",
    ),
    "sshd": (
        lambda: works("ssh", "-V") and Path("/usr/sbin/sshd").exists(),
        "there is no sshd (Debian package openssh-server)",
    ),
    "chromium": program("chromium", "--version"),
    "trex client": (
        lambda: importlib.util.find_spec("lbr_trex_client") is not None and sys.version_info < (3, 12),
        "there is no lbr-trex-client (pip install 'labkit[trex]'), or Python is newer than 3.11",
    ),
    "veth": link("veth", VETH),
    "netkit": link("netkit", "name one type netkit"),
    "bridge": link("bridge", "name one type bridge"),
    "ifb": link("ifb", "name one type ifb"),
    "macvlan": link("macvlan", VETH, "name three link one type macvlan"),
    "ipvlan": link("ipvlan", VETH, "name three link one type ipvlan"),
    "user-mode networks": (
        lambda: AS_ROOT and all(works(name, "--version") for name in ("pasta", "slirp4netns", "rootlesskit")),
        "there is no pasta, slirp4netns or rootlesskit (Debian packages passt, slirp4netns, rootlesskit), or no root",
    ),
    "clsact": (
        lambda: AS_ROOT and works(*IN_A_NAMESPACE, "tc", "qdisc", "add", "dev", "lo", "clsact"),
        "no BPF program can be attached by tc: the kernel lacks CONFIG_NET_SCH_INGRESS, or this user is not root",
    ),
    "netem": (
        lambda: AS_ROOT and works(*IN_A_NAMESPACE, "tc", "qdisc", "add", "dev", "lo", "root", "netem"),
        "this kernel has no netem (sch_netem), or this user is not root",
    ),
    "vxlan": link("vxlan", "name one type vxlan id 1 dstport 4789"),
    "geneve": link("geneve", "name one type geneve id 1 remote 192.0.2.1"),
    "gre": link("net_ipgre", "name one type gre local 192.0.2.1 remote 192.0.2.2"),
    "ipip": link("net_ipip", "name one type ipip local 192.0.2.1 remote 192.0.2.2"),
    "tap": (
        lambda: works(*IN_A_NAMESPACE, "ip", "tuntap", "add", "name", "one", "mode", "tap"),
        "no tap can be made: the kernel has none (CONFIG_TUN), or /dev/net/tun is not for this user",
    ),
    "openvswitch": program("ovs-vswitchd", "--version", package="openvswitch-switch"),
    "ovs kernel": (ovs_in_kernel, "this kernel has no Open vSwitch datapath (CONFIG_OPENVSWITCH)"),
    "german locale": (
        lambda: works("localedef", "--version") and Path("/usr/share/i18n/locales/de_DE").exists(),
        "there are no sources of locales (Debian package locales)",
    ),
    "podman": (
        lambda: AS_ROOT and works("podman", "--version") and Path("/usr/lib/cni/portmap").exists(),
        "there is no Podman with CNI plugins (Debian packages podman, containernetworking-plugins), or this user is not"
        " root",
    ),
    "runc": program("runc", "--version"),
    "apt": (lists_can_be_fetched, "there is no apt here, or its sources do not answer"),
    "depmod": program("/usr/sbin/depmod", "--version", package="kmod"),
    "qemu": program("qemu-system-x86_64", "--version", package="qemu-system-x86"),
    "busybox": program("busybox", "true", package="busybox-static"),
    "lab kernel": (
        lambda: kernel("cloud") is not None,
        "Debian's cloud kernel is not here (`labkit kernels get cloud`)",
    ),
    "netkit kernel": (
        lambda: importlib.import_module("benchmarks.set_up").netkit_kernel() is not None,
        "no kernel here that a lab VM can boot has netkit (CONFIG_NETKIT, since Linux 6.7)",
    ),
    "full kernel": (lambda: kernel("") is not None, "Debian's kernel is not here (`labkit kernels get`)"),
    "git": (lambda: works("git", "rev-parse"), "these files are not in a git work tree, or git refuses it"),
    "set-up": (lambda: Path(sys.prefix) == ROOT / ".venv", "this Python is not that of `make setup`"),
}


@functools.cache
def met(name: str) -> bool:
    if name not in NEEDS:
        raise LookupError(f"no need is called {name!r}; there are {', '.join(NEEDS)}")
    return NEEDS[name][0]()


def require(*names: str) -> None:
    """Continue if this machine meets all these needs. Otherwise skip, or fail where LABKIT_NO_SKIP forbids skipping."""
    must = os.environ.get("LABKIT_NO_SKIP", "").split(",")
    for name in names:
        if met(name):
            continue
        sentence = f"needs {name}: {NEEDS[name][1]}"
        if name in must or "1" in must:
            pytest.fail(f"{sentence}, and LABKIT_NO_SKIP says that this machine must meet it", pytrace=False)
        pytest.skip(sentence)


@pytest.fixture(scope="session")
def need() -> Need:
    return require


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Make a sandbox (sandbox.Sandbox) for all tests of a module."""
    from sandbox import sandbox

    with sandbox(tmp_path_factory.mktemp("machine")) as made:
        yield made


@pytest.fixture
def namespace() -> Iterator[tuple[int, Any]]:
    """Make a network namespace: its descriptor, and a socket to its kernel."""
    from labkit.system import netlink

    [(fd, kernel)] = netlink.new_namespaces(1)
    with closing(kernel):
        yield fd, kernel
    os.close(fd)


@pytest.fixture(scope="session")
def lab_kernel() -> str:
    """Return the release of a small kernel that a lab VM boots quickly."""
    require("qemu", "lab kernel")
    return str(kernel("cloud"))


@pytest.fixture(scope="session")
def full_kernel() -> str:
    """Return the release of a kernel with all modules."""
    require("qemu", "full kernel")
    return str(kernel(""))


class SharedVm(NamedTuple):
    """A lab VM that is booted once for all tests of a session: its `where`, and its writable folder."""

    where: str
    folder: Path

    def run(self, experiment: str, *words: str, timeout: float = 400) -> Path:
        """Run an experiment in it with the command line; return the run's folder."""
        from sandbox import LABKIT

        folder = Path(tempfile.mkdtemp(dir=self.folder)) / experiment
        argv = [*LABKIT, "run", experiment, f"where={self.where}", *words, "--folder", str(folder)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, done.stderr
        return folder


def printed_at(where: str, program: str, *words: str, timeout_s: float = 1500) -> Any:
    """Return the JSON that a program of the tests prints in a lab VM, in namespaces like an experiment's.

    On a slow machine, twenty tunnels took 418 s.
    """
    from labkit import live

    argv = ["env", f"PYTHONPATH={ROOT}", sys.executable, str(ROOT / "tests" / program), *words]
    with live.build("veth", where=where) as net:
        return json.loads(net.client0.run(*argv, timeout_s=timeout_s))


@pytest.fixture(scope="session")
def shared_vm(full_kernel: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedVm]:
    """Boot a lab VM with all modules and one CPU. Tests leave nothing in it.

    Emulated kernels with two CPUs sometimes panic when the first capture begins, or when the first tunnel of a kind
    patches the kernel's code (jump labels).
    """
    from labkit.measure import hosts

    folder = tmp_path_factory.mktemp("shared-vm")
    where = f"vm:{full_kernel},cpus=1"
    with hosts.leasing(folder, print) as lease:
        lease(where)
        yield SharedVm(where, folder)


@pytest.fixture(autouse=True)
def _needs_of_mark(request: pytest.FixtureRequest) -> Iterator[None]:
    needs = [name for mark in request.node.iter_markers("needs") for name in mark.args]
    with ExitStack() as stack:
        if "apt" in needs and MACHINES_NETWORK in request.config.stash:
            from labkit.system import netlink

            stack.enter_context(netlink.inside(request.config.stash[MACHINES_NETWORK]))
        require(*needs)
        yield


MACHINES_NETWORK = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Take interrupts, and move a worker into its own network namespace, in which only lo is up."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell lets programs in its background ignore them, and so would all programs that the tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not AS_ROOT or not hasattr(config, "workerinput"):
        return
    from labkit.system import netlink

    config.stash[MACHINES_NETWORK] = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    [(own, socket)] = netlink.new_namespaces(1)
    socket.do(netlink.set_link(1))
    socket.close()
    stack = ExitStack()
    stack.enter_context(netlink.inside(own))
    config.add_cleanup(stack.close)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of which make selects nothing: each worker would import them, and what they import."""
    selected = config.option.markexpr.partition(" and ")[0]
    if collection_path.suffix != ".py" or selected not in ("not long", "long", "alone", "exhaustive"):
        return None
    text, is_long = collection_path.read_text(), collection_path.parent.name in ("vm", "notebooks")
    if selected == "not long":
        return True if is_long and "mark.smoke" not in text else None
    marked = f"mark.{selected}" in text or f'"{selected}"' in text
    return None if marked or (is_long and selected == "long") else True


def pytest_collection_finish() -> None:
    """Take what is imported by now out of garbage collection, which otherwise walks through it again and again."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # DuckDB reports what is left at the end as leaks


# Files in tests/vm whose lab VMs serve no other file, and which wait for no deadline of an emulated kernel. The longest
# are first.
OWN_VMS = (
    "vm/test_guests.py", "vm/test_notebook_kernel.py", "vm/test_vm_lifetimes.py", "vm/test_vm_faults.py",
    "vm/test_guests_on_a_switch.py", "vm/test_kernel_browser.py", "vm/test_kernels_ask.py",
)  # fmt: skip


class Scheduling(LoadFileScheduling):
    """Run the tests of a file in one worker, one after the other, and likewise nearly all tests in tests/vm that boot.

    Emulated kernels that share two cores miss deadlines, and one lab VM serves many tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope = str(super()._split_scope(nodeid))
        path = scope.removeprefix("tests/")
        boots = path.startswith("vm/") and path != "vm/test_kernels_get.py"
        return "tests/vm" if boots and path not in OWN_VMS else scope


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


# Files that take a minute or more. At the end, such a file would leave the other workers idle.
LONGEST = (
    "lab/test_readme.py", "unit/test_docs_site.py", "lab/test_open_vswitch.py", "lab/test_check.py",
    "lab/test_existing.py", "lab/test_ssh.py", "lab/test_trex.py", "lab/test_two_hosts.py", "lab/test_throughput.py",
    "lab/test_requests.py", "lab/test_changes_applied.py", "lab/test_loads.py", "lab/test_reachability.py",
    "lab/test_without_studies.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark long tests by their folder, and start the longest first so that none of them runs alone at the end.

    Tests in tests/lab wait for half of their time. Those in tests/unit, and lab VMs, which do not wait, stand between
    them and use the CPUs meanwhile. In tests/vm, those that share a lab VM come before those that boot one of their
    own, and long tests in tests/unit before those in tests/notebooks: more of them fit into the time that CI has.
    """
    paths = {item: item.path.relative_to(ROOT / "tests") for item in items}
    folders = {item: path.parts[0] for item, path in paths.items()}
    order = {"vm": 0, **dict.fromkeys(LONGEST, 1), "notebooks": 2, **dict.fromkeys(OWN_VMS, 3)}
    at = {}
    for folder in {*folders.values()}:
        files = list(dict.fromkeys(path for path in paths.values() if path.parts[0] == folder))
        at |= {path: number / len(files) for number, path in enumerate(files)}
    at |= {Path(name): number / 10 for number, name in enumerate(OWN_VMS)}

    def place(item: pytest.Item) -> tuple[int, bool, float]:
        has_own_vm = "shared_vm" not in getattr(item, "fixturenames", ())
        otherwise = 1 if folders[item] == "unit" and item.get_closest_marker("long") else 3
        return order.get(str(paths[item]), order.get(folders[item], otherwise)), has_own_vm, at[paths[item]]

    items.sort(key=place)
    for item, folder in folders.items():
        if folder in ("vm", "notebooks") and not item.get_closest_marker("smoke"):
            item.add_marker("long")
        if folder == "unit" and item.get_closest_marker("alone"):
            raise pytest.UsageError(f"{item.nodeid}: `make test-alone` runs no unit tests")
