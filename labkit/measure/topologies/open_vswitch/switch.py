"""A private Open vSwitch: its own ovsdb-server and ovs-vswitchd in a namespace, with a folder in memory.

The machine's own Open vSwitch is neither used nor changed. The kernel ends both programs with the experiment. Ports
and datapath disappear with the namespace, the folder with the mount namespace.
"""

import functools
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from labkit.common import packages
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.switch_options import Datapath, SwitchOptions
from labkit.measure.endpoints import Namespace
from labkit.measure.topologies.open_vswitch import dpdk
from labkit.measure.topologies.open_vswitch.configuration import Bridge, operations
from labkit.measure.topologies.open_vswitch.rpc import Connection, Database
from labkit.system import machine, process
from labkit.system.temporary_files import in_memory, short_folder

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
DAEMON, SERVER = "ovs-vswitchd", "ovsdb-server"
OLDEST = (2, 17)  # older versions are untested
START_S = 60.0  # for an emulated CPU; a program that has ended is noticed at once
LOG = "vswitchd.log"
# Open vSwitch counts the CPUs every 10 s by the clock since boot. Before the first count it assumes none and starts no
# handler threads for the kernel datapath (lib/ovs-thread.c, count_cpu_cores).
COUNTED_CPUS_S = 10.5
CPUCLOCK_SCHED = 2  # linux/posix-timers.h: a process's CPU clock is derived from its pid


class Switch:
    """A switch: its namespace, its folder, its database, and its two programs.

    The folder has the sockets of both: db.sock, CONTROL for ovs-appctl(8), and BRIDGE.mgmt for ovs-ofctl(8).
    """

    CONTROL = "vswitchd.ctl"

    def __init__(self, space: Namespace, folder: Path, programs: list[process.Running]) -> None:
        self.space = space
        self.folder = folder
        # of the caller, who ends them: ovsdb-server, then ovs-vswitchd, each from its start
        self._programs = programs
        self._opened = ExitStack()
        self._config = 0
        self.kernel = False  # whether it uses the kernel datapath
        self.uplink: str | None = None  # its interface by which mirrors' tunnels leave, if any

    @property
    def pid(self) -> int:
        """The pid of ovs-vswitchd."""
        return self._programs[1].pid

    @functools.cached_property
    def database(self) -> Database:
        """The switch's configuration and state."""
        return self._opened.enter_context(closing(Database(self.folder / "db.sock")))

    @functools.cached_property
    def _control(self) -> Connection:
        return self._opened.enter_context(closing(Connection(self.folder / self.CONTROL)))

    def command(self, name: str, *words: str) -> str:
        """Run an ovs-appctl(8) command and return its output. Raises Failed with its message."""
        return str(self._control.call(name, *words))

    def cpu_s(self) -> float:
        """Return the CPU seconds of all threads of ovs-vswitchd, in nanosecond resolution.

        Raises Failed if it has ended, or ovsdb-server, without which its state is not known.
        """
        if (words := self._end()) is not None:
            raise Failed(f"the switch has ended: {words}")
        return time.clock_gettime((~self.pid << 3) | CPUCLOCK_SCHED)

    def open(self) -> None:
        """Create an empty database and start its server."""
        path, socket = self.folder / "conf.db", self.folder / "db.sock"
        process.output(["ovsdb-tool", "create", str(path), str(SCHEMA)], START_S)
        self._run(
            SERVER, str(path), f"--remote=punix:{socket}", f"--unixctl={self.folder / 'ovsdb.ctl'}",
            f"--log-file={self.folder / 'ovsdb.log'}", "-vconsole:off", until=socket,
        )  # fmt: skip

    def start(self, bridges: Sequence[Bridge], options: SwitchOptions, program: str = DAEMON) -> None:
        """Start the switch with these bridges in the empty database.

        program: the ovs-vswitchd without DPDK. Raises as `settled`, BadInput for a CPU that does not exist, and
        Unsupported if this kernel or this machine's Open vSwitch lacks the datapath or is too old for it.
        """
        datapath, cpu = options.datapath, options.cpu
        program = dpdk.program() if datapath is Datapath.DPDK else program
        if program != DAEMON:
            version(program)
        if cpu is not None and cpu not in (there := sorted(os.sched_getaffinity(0))):
            raise BadInput(f"cpu={cpu}: there is no CPU {cpu} for the switch; there are {there}")
        pinned = [] if cpu is None else ["taskset", "--cpu-list", str(cpu)]
        self._config, self.kernel = 1, not datapath.in_userspace
        self.database.transact(*operations(bridges, options.flow_limit, cpu))
        if self.kernel:
            time.sleep(max(0.0, COUNTED_CPUS_S - time.clock_gettime(time.CLOCK_BOOTTIME)))
        # The last is that of DPDK's own files.
        folders = ("OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR", "RUNTIME_DIRECTORY")
        self._run(
            "env", *(f"{name}={self.folder}" for name in folders), *pinned, program,
            f"unix:{self.folder / 'db.sock'}",
            f"--unixctl={self.folder / self.CONTROL}", f"--log-file={self.folder / LOG}", "-vconsole:off",
            until=self.folder / self.CONTROL,
        )  # fmt: skip
        if self.kernel:
            self._wait_for_datapath()
        try:
            self.settled()
        except Failed:
            [row] = self.database.rows("Open_vSwitch", "iface_types")
            if datapath is Datapath.AF_XDP and "afxdp" not in str(row["iface_types"]):
                raise Unsupported(
                    "this Open vSwitch was built without AF_XDP (libxdp): use ovs_netdev, or a build that has it"
                ) from None
            raise

    def _run(self, *argv: str, until: Path) -> None:
        """Start a program in the switch's namespace and wait for its socket."""
        program = process.Running([*self.space.prefix, *argv])
        self._programs.append(program)
        if not program.ready(until.exists, time.monotonic() + START_S):
            late = f"Open vSwitch's {until.name} did not appear within {START_S:.0f} s"
            raise Failed(program.ended().message() if program.poll() else late)

    def configure(self, *operations: dict[str, Any]) -> None:
        """Change the configuration in one transaction, and wait until it is in force. Raises as `settled`."""
        self._config += 1
        now = {"op": "update", "table": "Open_vSwitch", "where": [], "row": {"next_cfg": self._config}}
        self.database.transact(*operations, now)
        self.settled()

    def settled(self) -> None:
        """Wait until ovs-vswitchd has applied its configuration. Raises Failed with its message, also for a refused
        port."""
        deadline = time.monotonic() + START_S
        while (now := self.database.rows("Open_vSwitch", "cur_cfg")[0]["cur_cfg"]) < self._config:
            if (words := self._end()) is not None:
                raise Failed(words)
            if time.monotonic() > deadline:
                raise Failed(
                    f"ovs-vswitchd did not apply its configuration within {START_S:.0f} s ({now} of {self._config}):"
                    f" {self.warnings() or 'it wrote no warning'}"
                )
            time.sleep(0.002)
        rows = self.database.rows("Interface", "name", "error")
        if faults := [f"{row['name']} ({row['error']})" for row in rows if row["error"]]:
            raise Failed(f"Open vSwitch refused ports: {'; '.join(faults[:3])}")

    def _end(self) -> str | None:
        """Return how ovs-vswitchd or ovsdb-server ended, with the last warnings of the former; None while both run."""
        for name, program in zip((SERVER, DAEMON), self._programs, strict=False):
            if program.poll():
                code = program.ended().returncode
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
                return f"{name} {how}" + (f" ({words})" if (words := self.warnings()) else "")
        return None

    def _wait_for_datapath(self) -> None:
        """Wait for the handler threads; without them the kernel datapath drops packets of unknown flows."""
        deadline = time.monotonic() + START_S
        while not any(name.startswith("handler") for name in self._threads()):
            if "kernel module is probably not loaded" in self._log():
                raise Unsupported(
                    "this kernel has no Open vSwitch datapath (CONFIG_OPENVSWITCH is not set and no module was found):"
                    " use ovs_netdev, or a kernel that has it (where=vm:debian boots one in a lab VM)"
                )
            if (words := self._end()) is not None:
                raise Failed(words)
            if time.monotonic() > deadline:
                raise Failed(
                    "ovs-vswitchd started no handler thread, so the kernel's datapath would drop the first packets of"
                    f" every flow: {self.warnings()}"
                )
            time.sleep(0.005)

    def _threads(self) -> list[str]:
        names = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/comm"):
            with suppress(OSError):  # the thread has just ended
                names.append(path.read_text().strip())
        return names

    def warnings(self) -> str:
        """Return the last warnings and errors of ovs-vswitchd, in one line."""
        serious = re.findall(r"^[^|]*\|\d+\|(.*\|(?:WARN|ERR|EMER)\|.*)$", self._log(), re.MULTILINE)
        return "; ".join(serious[-3:])

    def _log(self) -> str:
        path = self.folder / LOG
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        self._opened.close()


def version(program: str = DAEMON) -> str:
    """Return the version of an ovs-vswitchd (name or path). Raises Unsupported if it is missing or too old."""
    result = machine.versions([program])[program]
    if result is None or not SCHEMA.exists():
        raise Unsupported(
            f"Open vSwitch is not installed ({program}): {packages.install(DAEMON)}; its service need not run"
        )
    if tuple(int(number) for number in re.findall(r"\d+", result)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Unsupported(f"Open vSwitch {result} ({program}) is too old: install {oldest} or newer")
    return result


@contextmanager
def switch(space: Namespace) -> Iterator[Switch]:
    """Start a switch with an empty database in this namespace; its programs end with the block.

    Raises as `version`.
    """
    version()
    with short_folder("labkit-ovs-", in_memory()) as folder, process.all_ended([]) as programs:
        with closing(Switch(space, folder, programs)) as made:
            made.open()
            yield made
