"""Changes of an interface: offloads, rings, channels, MTU, and the CPUs of its queues."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.common import packages
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.experiments.change_kinds import checks
from labkit.measure.experiments.change_kinds.base import Files, Kind, Place, State
from labkit.system import machine, netlink, process

CPUS = r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"
OFFLOAD_NAMES = {
    "rx": "rx-checksumming", "tx": "tx-checksumming", "sg": "scatter-gather", "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload", "gro": "generic-receive-offload", "lro": "large-receive-offload",
    "rxvlan": "rx-vlan-offload", "txvlan": "tx-vlan-offload", "ntuple": "ntuple-filters", "rxhash": "receive-hashing",
}  # fmt: skip


class Offload(Kind):
    """Features of an interface, by their full or short names in ethtool -k."""

    example = "offload gro off tso off at server"

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        return checks.values_by_name("offload", text)

    def check(self, options: Mapping[str, Any]) -> None:
        if not options:
            raise BadInput("offload needs a feature, and on or off")
        for name, value in options.items():
            if not re.fullmatch(r"[a-z][a-z0-9_-]{1,40}", name) or value not in ("on", "off"):
                raise BadInput(f"offload {name} {value}: give a feature of ethtool -k, then on or off")

    def setting(self, option: str) -> str:
        return OFFLOAD_NAMES.get(option, option)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        checks.no_guest("offload", place)
        result = machine.offloads(place.namespace.prefix, place.interface)
        if not result:
            raise Unsupported(packages.missing("ethtool"))
        for name in options:
            if self.setting(name) not in result:
                raise Unsupported(f"{place} has no offload {name}; it has {', '.join(sorted(result))}")
        return {name: "on" if on else "off" for name, on in result.items()}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [word for pair in options.items() for word in pair]
        values_text = ", ".join(f"{name} {value}" for name, value in options.items())
        checks.output_or_raise(
            place.program("ethtool", "-K", place.interface, *words),
            f"offload {values_text} of {place}",
            ("could not change",),
        )

    def verify(self, after: State, options: Mapping[str, Any], place: Place) -> None:
        for name, value in options.items():
            if after[self.setting(name)] != value:
                raise Unsupported(f"the interface {place} does not let its offload {name} be set to {value}")


class Counts(Kind):
    """Rings (ethtool -G) or channels (ethtool -L): numbers by name."""

    def __init__(self, name: str, get: str, put: str) -> None:
        self._name, self._get, self._put = name, get, put
        self.example = f"{name} rx 2 tx 2 at both"

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        return checks.values_by_name(self._name, text)

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return {name: str(value) for name, value in given.items()}

    def check(self, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if name not in ("rx", "tx", "combined", "other", "rx-mini", "rx-jumbo"):
                raise BadInput(
                    f"{self._name} has no number {name}: choose rx, tx, combined, other, rx-mini, rx-jumbo"
                )
            checks.whole_number(f"{self._name} {name}", value, 0, 1 << 20)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        checks.no_guest(self._name, place)
        text = checks.output_or_raise(
            place.program("ethtool", self._get, place.interface), f"{self._name} of {place}"
        )
        current = text.partition("Current hardware settings:")[2]
        return {
            f"{self._name} {name.strip().lower()}": value.strip()
            for name, _, value in (line.partition(":") for line in current.splitlines())
            if value.strip()
        }

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [word for pair in options.items() for word in pair]
        report = f"{self._name} {' '.join(words)} of {place}"
        checks.output_or_raise(place.program("ethtool", self._put, place.interface, *words), report)

    def verify(self, after: State, options: Mapping[str, Any], place: Place) -> None:
        for name, value in options.items():
            setting = f"{self._name} {name.replace('-', ' ')}"
            if (now := after.get(setting, value)) != str(int(value)):
                raise Failed(f"{place}: the driver set {setting} to {now} instead of {value}")


class Mtu(Kind):
    """The MTU of an interface. The MTU of a whole path is the parameter mtu_bytes."""

    example = "mtu 9000 at both"

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        return {"bytes": checks.whole_number("mtu", text, 68, 65535)}

    def check(self, options: Mapping[str, Any]) -> None:
        if options.keys() != {"bytes"}:
            raise BadInput(f"mtu takes a number of bytes, for example `{self.example}`")
        checks.whole_number("mtu", options["bytes"], 68, 65535)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        checks.no_guest("mtu", place)
        return {"mtu_bytes": str(_link(place).mtu_bytes)}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        try:
            place.namespace.netlink.do(
                netlink.set_link(_link(place).index, up=False, mtu_bytes=int(options["bytes"]))
            )
        except netlink.LinkError as error:
            raise Failed(f"{place} does not accept an MTU of {options['bytes']} bytes: {error}") from None


class TxQueueLength(Kind):
    """The length of an interface's transmission queue, which queueing disciplines take as their limit."""

    example = "txqueuelen 10 at client"

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        return {"packets": text}

    def check(self, options: Mapping[str, Any]) -> None:
        if options.keys() != {"packets"}:
            raise BadInput(f"txqueuelen takes a number of packets, for example `{self.example}`")
        checks.whole_number("txqueuelen", options["packets"], 0, 1 << 20)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        checks.no_guest("txqueuelen", place)
        shown = checks.output_or_raise(
            place.program("ip", "-j", "link", "show", "dev", place.interface), f"the queue of {place}"
        )
        [link] = json.loads(shown)
        return {"txqueuelen": str(link.get("txqlen", 0))}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = ("dev", place.interface, "txqueuelen", str(int(options["packets"])))
        checks.output_or_raise(place.program("ip", "link", "set", *words), f"txqueuelen of {place}")


def _link(place: Place) -> netlink.Link:
    result = [one for one in netlink.links(place.namespace.netlink) if one.name == place.interface]
    if not result:
        raise Unsupported(f"there is no interface {place}")
    return result[0]


class Steering(Kind):
    """RPS or XPS: the CPUs that process received (RPS) or sent (XPS) packets of every queue of an interface."""

    def __init__(self, name: str, queues: str) -> None:
        self._name, self._queues = name, queues
        self.example = f"{name} 0,1 at server"

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        return {"cpus": text}

    def check(self, options: Mapping[str, Any]) -> None:
        checks.text_options(self._name, options, "cpus")
        if not re.fullmatch(CPUS, options["cpus"]):
            raise BadInput(f"{self._name} {options['cpus']}: CPUs are like 0 or 0,2-3")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        checks.no_guest(self._name, place)
        with self._files(place) as files:
            return {f"{self._name} {path.parent.name}": self._read(path) for path in files}

    def _read(self, path: Path) -> str:
        try:
            return path.read_text().strip()
        except OSError as error:
            raise Unsupported(
                f"{self._name} cannot be set for an interface of one queue ({error.strerror})"
            ) from None

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        mask = 0
        for part in options["cpus"].split(","):
            first, _, last = part.partition("-")
            for cpu in range(int(first), int(last or first) + 1):
                mask |= 1 << cpu
        groups = f"{mask:x}"
        # The kernel takes a mask in groups of 32 bits (lib/bitmap-str.c, bitmap_parse).
        text = ",".join(groups[max(0, end - 8) : end] for end in range(len(groups), 0, -8)[::-1])
        with self._files(place) as files:
            for path in files:
                try:
                    path.write_text(text)
                except OSError as error:
                    raise checks.refused(error, f"{self._name} {options['cpus']}") from None

    @contextmanager
    def _files(self, place: Place) -> Iterator[list[Path]]:
        """Yield the files of the queues.

        sysfs shows the network namespace in which it was mounted, so it is mounted again in the experiment's mount
        namespace.
        """
        with tempfile.TemporaryDirectory() as folder:
            argv = [*place.namespace.prefix, "mount", "-t", "sysfs", "labkit", folder]
            process.output(argv)
            try:
                result = sorted(Path(folder, "class/net", place.interface, "queues").glob(self._queues))
                if not result:
                    raise Unsupported(f"this kernel has no {self._name} for {place}")
                yield result
            finally:
                process.output(["umount", "--lazy", folder])


OFFLOAD, MTU, TXQUEUELEN = Offload(), Mtu(), TxQueueLength()
RING, CHANNELS = Counts("ring", "-g", "-G"), Counts("channels", "-l", "-L")
RPS, XPS = Steering("rps", "rx-*/rps_cpus"), Steering("xps", "tx-*/xps_cpus")
