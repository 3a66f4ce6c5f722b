"""Changes of an interface: offloads, rings, channels, MTU, how it is polled, and the CPUs of its queues."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from labkit.common import packages
from labkit.common.errors import BadInput, Failed, Unsupported, choose, did_you_mean
from labkit.measure.endpoints import Namespace
from labkit.measure.experiments.change_kinds.base import NAMES, Kind, Place, State
from labkit.system import netlink
from labkit.system.netlink import big_tcp, ethtool

CPUS = r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"


class Offload(Kind):
    """Features of an interface, by their full or short names in ethtool -k."""

    example = "offload gro off tso off at server"
    form = NAMES
    # The short names, the kernel's two names without a hyphen, and those that a kernel may have or not.
    takes: ClassVar = dict.fromkeys(
        ("|".join(ethtool.SHORT_NAMES), "highdma|loopback", r"(?=.{2,41}$)[a-z][a-z0-9_]*-[a-z0-9_-]+"),
        "on|off",
    )

    def setting(self, option: str) -> str:
        return ethtool.SHORT_NAMES.get(option, option)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        result = place.kernel.offloads(place.interface)
        if not result:
            raise Unsupported(packages.missing("ethtool"))
        for name in options:
            if self.setting(name) not in result:
                kind = BadInput if did_you_mean(name, result, least=0.95) else Unsupported
                raise kind(f"{place} has no offload {name}: {choose(name, sorted(result))}")
        return {name: "on" if on else "off" for name, on in result.items()}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        argv = ["ethtool", "-K", place.interface, *(word for pair in options.items() for word in pair)]
        values_text = ", ".join(f"{name} {value}" for name, value in options.items())
        place.run(f"offload {values_text} of {place}", *argv, lacking=("could not change",))

    def verify(self, after: State, options: Mapping[str, Any], place: Place) -> None:
        for name, value in options.items():
            if after[self.setting(name)] != value:
                raise Unsupported(f"the interface {place} does not let its offload {name} be set to {value}")


class Counts(Kind):
    """Rings (ethtool -G) or channels (ethtool -L): numbers by name."""

    form = NAMES
    takes: ClassVar = {"rx|tx|combined|other|rx-mini|rx-jumbo": r"\d{1,7}"}

    def __init__(self, name: str, get: str, put: str) -> None:
        self._get, self._put = get, put
        self.example = f"{name} rx 2 tx 2 at both"

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        text = place.run(f"{self.name} of {place}", "ethtool", self._get, place.interface)
        current = text.partition("Current hardware settings:")[2]
        return {
            f"{self.name} {name.strip().lower()}": value.strip()
            for name, _, value in (line.partition(":") for line in current.splitlines())
            if value.strip()
        }

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [word for pair in options.items() for word in pair]
        place.run(f"{self.name} {' '.join(words)} of {place}", "ethtool", self._put, place.interface, *words)

    def verify(self, after: State, options: Mapping[str, Any], place: Place) -> None:
        for name, value in options.items():
            setting = f"{self.name} {name.replace('-', ' ')}"
            if (now := after.get(setting, value)) != str(int(value)):
                raise Failed(f"{place}: the driver set {setting} to {now} instead of {value}")


class LinkNumber(Kind):
    """A number of an interface that ip-link(8) sets: the kind's only option.

    `state_name`: its name in `state`. `json_name`: its name in ip's JSON.
    """

    state_name = ""
    json_name = ""

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {self.state_name: str(place.link(f"{self.name} of {place}").get(self.json_name, 0))}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        [number] = (str(int(value)) for value in options.values())
        argv = ("ip", "link", "set", "dev", place.interface, self.name, number)
        place.run(f"{self.name} {number} of {place}", *argv)


class Mtu(LinkNumber):
    """The MTU of an interface. That of a whole path is the parameter mtu_bytes."""

    example = "mtu 9000 at both"
    takes: ClassVar = {"bytes": range(68, 65536)}
    state_name, json_name = "mtu_bytes", "mtu"


class QueueLength(LinkNumber):
    """The length of an interface's transmission queue, which queueing disciplines take as their limit."""

    example = "txqueuelen 10 at client"
    takes: ClassVar = {"packets": range(1 << 20)}
    state_name, json_name = "txqueuelen", "txqlen"


class BigTcp(Kind):
    """BIG TCP: the largest size of the packets that an interface's segmentation and merging (GSO, GRO) make of TCP.

    An interface on the way that has not the same size segments them again.
    """

    example = "big_tcp 196608 at both"
    takes: ClassVar = {"bytes": range(65537, 8 * 65535 + 1)}  # GSO_MAX_SIZE of linux/netdevice.h

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        kernel, index = self._found(place)
        result = big_tcp.sizes_bytes(kernel, index)
        if len(result) < len(big_tcp.SIZES):
            raise Unsupported(
                "this kernel has no BIG TCP for IPv4: use Linux 6.3 or later (where=vm:RELEASE)"
            )
        return {name: str(size_bytes) for name, size_bytes in result.items()}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        kernel, index = self._found(place)
        try:
            kernel.do(big_tcp.set_sizes(index, int(options["bytes"])))
        except netlink.LinkError as error:
            raise Unsupported(f"the interface {place} refuses BIG TCP: {error}") from None

    def _found(self, place: Place) -> tuple[netlink.Netlink, int]:
        if not isinstance(place.kernel, Namespace):
            raise Unsupported(f"big_tcp: {place} is in a guest; labkit sets it in namespaces only")
        with netlink.inside(place.kernel.fd):
            return place.kernel.netlink, netlink.index_of(place.interface)


def _with_files(place: Place, what: str, files: str, script: str, lacking: Sequence[str]) -> str:
    """Return the output of a shell script whose arguments are files of an interface in sysfs.

    sysfs shows the network namespace in which it was mounted, so it is mounted again in a mount namespace.
    """
    lines = [
        "set -e",
        "mount -t sysfs labkit /sys/kernel",  # on /sys, the same sysfs would be refused as busy
        'cd "/sys/kernel/class/net/$1"',
        f"set -- {files}",
        f'[ -e "$1" ] || {{ echo "this kernel has no {what} for it" >&2; exit 1; }}',
        script,
    ]
    words = ("-c", 'exec unshare -m /bin/sh -c "$@"', "sh", "\n".join(lines), "sh", place.interface)
    return place.run(what, "/bin/sh", *words, lacking=("has no", *lacking))


class Napi(Kind):
    """How NAPI polls an interface: in a thread of its own, or later, so that more packets merge.

    Source: Documentation/networking/napi.rst. A veth has NAPI where its GRO is on, or an XDP program is attached.
    """

    example = "napi threaded 1 at server"
    form = NAMES
    takes: ClassVar = {
        "threaded": range(2),
        "gro_flush_timeout": range(1_000_000_001),  # ns
        "napi_defer_hard_irqs": range(1_000_000),
    }

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        values = _with_files(place, f"NAPI of {place}", " ".join(options), 'cat "$@"', ("no such file",))
        return dict(zip(options, values.split(), strict=True))

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            script = f'echo {int(value)} | tee "$1"'
            _with_files(place, f"{name}={value} of {place}", name, script, ("invalid argument",))


class Steering(Kind):
    """RPS or XPS: the CPUs that process received (RPS) or sent (XPS) packets of every queue of an interface."""

    takes: ClassVar = {"cpus": CPUS}

    def __init__(self, name: str, queues: str) -> None:
        self._queues = queues
        self.example = f"{name} 0,1 at server"

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        script = 'for file; do cpus=$(cat "$file"); file=${file#*/}; echo "${file%/*} $cpus"; done'
        lines = self._at_queues(place, f"{self.name} of {place}", script).splitlines()
        return {f"{self.name} {queue}": cpus for queue, _, cpus in (line.partition(" ") for line in lines)}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        mask = 0
        for part in options["cpus"].split(","):
            first, _, last = part.partition("-")
            for cpu in range(int(first), int(last or first) + 1):
                mask |= 1 << cpu
        groups = f"{mask:x}"
        # The kernel takes a mask in groups of 32 bits (lib/bitmap-str.c, bitmap_parse).
        text = ",".join(groups[max(0, end - 8) : end] for end in range(len(groups), 0, -8)[::-1])
        # tee says why a file cannot be written; the shell's own echo does not.
        script = f'for file; do echo {text} | tee "$file"; done'
        self._at_queues(place, f"{self.name} {options['cpus']}", script)

    def _at_queues(self, place: Place, what: str, script: str) -> str:
        # The kernel refuses to show xps_cpus of an interface with one queue (ENOENT).
        return _with_files(place, what, self._queues, script, ("no such file",))


OFFLOAD, RING, CHANNELS = Offload(), Counts("ring", "-g", "-G"), Counts("channels", "-l", "-L")
MTU, TXQUEUELEN, BIG_TCP = Mtu(), QueueLength(), BigTcp()
RPS, XPS = Steering("rps", "queues/rx-*/rps_cpus"), Steering("xps", "queues/tx-*/xps_cpus")
NAPI = Napi()
