"""The kinds of changes, by name. KINDS is the one place to add a new one."""

from collections.abc import Mapping
from typing import Any, ClassVar

from labkit.common.errors import BadInput, choose
from labkit.common.extensions import Registry
from labkit.measure.experiments.change_kinds.base import Files, Kind, Place, State

# The parameters that an arm may set itself: it is built with its own MTU, IP version and guests.
PARAMETERS = (
    "length_bytes", "streams", "mss_bytes", "zerocopy", "congestion", "socket", "affinity", "rate_bps", "rate_rps",
    "mtu_bytes", "family", "guest",
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
    takes: ClassVar = dict.fromkeys(needs := ("name", "digest"), ".*")

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        raise BadInput("function: a function is given in Python, as change=[function]")

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return self.parse_text("", files)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        return


PARAMETER, AFFINITY, CONGESTION = Parameter(), Parameter("affinity", "0,1"), Parameter("congestion", "cubic")
SOCKET, FUNCTION = Parameter("socket", "nodelay=off"), Function()
_MODULES = {
    "sysctl": ("sysctl", "machine_sysctl"),
    "nftables": ("nftables", "rules", "conntrack"),
    "interface": ("offload", "ring", "channels", "mtu", "big_tcp", "txqueuelen", "rps", "xps"),
    "traffic_control": ("qdisc", "tc_filter", "xdp", "tc_bpf"),
    "route": ("route", "neighbour"),
    "monitor": ("monitor",),
    "program": ("program",),
    "registry": ("parameter", "affinity", "congestion", "socket", "function"),
}
KINDS = Registry(
    "",  # packages add none
    Kind,  # type: ignore[type-abstract]
    {
        name: f"labkit.measure.experiments.change_kinds.{module}:{name.upper()}"
        for module, names in _MODULES.items()
        for name in names
    },
    "there is no kind of change {!r}",
)
find = KINDS.find
