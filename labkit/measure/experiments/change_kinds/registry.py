"""The kinds of changes, by name. KINDS is the one place to add a new one."""

from collections.abc import Mapping
from typing import Any, ClassVar

from labkit.common.errors import BadInput, choose
from labkit.common.extensions import Registry
from labkit.measure.experiments.change_kinds.base import ASSIGNMENT, Files, Kind

# The parameters that an arm may set itself: it is built with its own MTU, IP version and guests.
PARAMETERS = (
    "length_bytes", "response_bytes", "streams", "mss_bytes", "zerocopy", "congestion", "socket", "affinity",
    "rate_bps", "rate_rps", "outstanding", "mtu_bytes", "family", "guest",
)  # fmt: skip


class Parameter(Kind):
    """A parameter of the load or the path with its own value in this arm."""

    placed = False
    form = ASSIGNMENT

    def __init__(self, example: str) -> None:
        self.example = example

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        return super().parse_text(text, files) if self.name == "parameter" else {self.name: text}

    def check(self, options: Mapping[str, Any]) -> None:
        if not options:
            raise BadInput("parameter needs NAME=VALUE")
        for name, value in options.items():
            if name not in PARAMETERS:
                raise BadInput(f"parameter {name} cannot be a change: {choose(name, PARAMETERS)}")
            if not isinstance(value, (str, int, float)):
                raise BadInput(f"parameter {name}: one value is needed")


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


PARAMETER, SOCKET = Parameter("parameter streams=4"), Parameter("socket nodelay=off")
AFFINITY, CONGESTION, FUNCTION = Parameter("affinity 0,1"), Parameter("congestion cubic"), Function()
_MODULES = {
    "sysctl": ("sysctl", "machine_sysctl"),
    "nftables": ("nftables", "rules", "conntrack"),
    "interface": ("offload", "ring", "channels", "mtu", "big_tcp", "txqueuelen", "rps", "xps", "napi"),
    "traffic_control": ("qdisc", "tc_filter", "xdp", "tc_bpf"),
    "route": ("route", "neighbour"),
    "monitor": ("monitor",),
    "program": ("program",),
    "registry": ("parameter", "affinity", "congestion", "socket", "function"),
}
KINDS = Registry(
    "",  # packages add none
    Kind,
    {
        name: f"labkit.measure.experiments.change_kinds.{module}:{name.upper()}"
        for module, names in _MODULES.items()
        for name in names
    },
    "there is no kind of change {!r}",
)
find = KINDS.find
