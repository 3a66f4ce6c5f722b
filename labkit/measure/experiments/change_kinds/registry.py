"""The kinds of changes, by name. KINDS is the one place to add a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.common.errors import BadInput, choose
from labkit.measure.experiments.change_kinds import checks
from labkit.measure.experiments.change_kinds.base import Files, Kind, Place, State
from labkit.measure.experiments.change_kinds.interface import Counts, Mtu, Offload, Steering, TxQueueLength
from labkit.measure.experiments.change_kinds.monitor import Monitored
from labkit.measure.experiments.change_kinds.nftables import Conntrack, Nftables, Rules
from labkit.measure.experiments.change_kinds.route import Neighbour, Route
from labkit.measure.experiments.change_kinds.sysctl import MachineSysctl, Sysctl
from labkit.measure.experiments.change_kinds.traffic_control import Filter, Qdisc, TcBpf, Xdp

# The parameters that an arm may set itself: it is built with its own MTU, IP version and guests.
PARAMETERS = (
    "length_bytes", "streams", "mss_bytes", "zerocopy", "congestion", "affinity", "rate_bps", "mtu_bytes", "family",
    "guest",
)  # fmt: skip


class Parameter(Kind):
    """A parameter of the load or the path with its own value in this arm."""

    placed = False
    example = "parameter streams=4"

    def __init__(self, only: str | None = None, value: str = "") -> None:
        self._only = only
        if only:
            self.example = f"{only} {value}"

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        if self._only:
            return {self._only: text}
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"parameter {text!r}: write NAME=VALUE")
        return {name.strip(): value.strip()}

    def check(self, options: Mapping[str, Any]) -> None:
        if not options:
            raise BadInput("parameter needs NAME=VALUE")
        for name, value in options.items():
            if name not in PARAMETERS:
                raise BadInput(f"parameter {name} cannot be a change: {choose(name, PARAMETERS)}")
            if not isinstance(value, (str, int, float)):
                raise BadInput(f"parameter {name}: one value is needed")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        return


class Function(Kind):
    """A Python function that changes the built topology: change=[FUNCTION], in the user's own program only.

    The request carries the function's source beside the parameters. Parameters from others name only a digest, and
    cannot bring source code.
    """

    placed = False

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        raise BadInput("function: a function is given in Python, as change=[function]")

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return self.parse_text("", files)

    def check(self, options: Mapping[str, Any]) -> None:
        checks.text_options("function", options, "name", "digest")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        return


KINDS: dict[str, Kind] = {
    "sysctl": Sysctl(),
    "machine_sysctl": MachineSysctl(),
    "nftables": Nftables(),
    "rules": Rules(),
    "conntrack": Conntrack(),
    "offload": Offload(),
    "ring": Counts("ring", "-g", "-G"),
    "channels": Counts("channels", "-l", "-L"),
    "mtu": Mtu(),
    "txqueuelen": TxQueueLength(),
    "qdisc": Qdisc(),
    "tc_filter": Filter(),
    "xdp": Xdp("xdp", "xdp"),
    "tc_bpf": TcBpf("tc_bpf", "tc"),
    "route": Route(),
    "neighbour": Neighbour(),
    "rps": Steering("rps", "rx-*/rps_cpus"),
    "xps": Steering("xps", "tx-*/xps_cpus"),
    "monitor": Monitored(),
    "parameter": Parameter(),
    "affinity": Parameter("affinity", "0,1"),
    "congestion": Parameter("congestion", "cubic"),
    "function": Function(),
}


def find(name: str) -> Kind:
    """Return the kind `name`. Raises BadInput with the known kinds."""
    if name not in KINDS:
        raise BadInput(f"there is no kind of change {name!r}: {choose(name, KINDS)}")
    return KINDS[name]
