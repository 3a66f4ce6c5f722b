"""The switch options in a topology's name: `ovs_netdev+mirrors=4+readers=count`.

Options are part of the name, so that switches with different mirrors are arms of one experiment.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labkit.common.errors import BadInput


class Datapath(StrEnum):
    """What forwards packets: the kernel's module, ovs-vswitchd with packet sockets, or ovs-vswitchd with DPDK."""

    KERNEL = "system"
    SOCKETS = "netdev"
    DPDK = "dpdk"

    @property
    def in_userspace(self) -> bool:
        """Whether ovs-vswitchd itself forwards."""
        return self is not Datapath.KERNEL

    @property
    def type(self) -> str:
        """The `datapath_type` in the switch's database."""
        return "netdev" if self.in_userspace else "system"


NAMES = {"ovs": Datapath.KERNEL, "ovs_netdev": Datapath.SOCKETS, "ovs_dpdk": Datapath.DPDK}  # by topology
*_first, _last = NAMES
ANY_NAME = f"{', '.join(_first)} or {_last}"
CASES = ("net_to_vm", "vm_to_net", "vm_to_vm")
KINDS = ("l2", "l3")  # of rules
MAX_MIRRORS = 32  # MAX_MIRRORS of Open vSwitch (ofproto/ofproto-dpif-mirror.h): a bit of 32 for each
READERS = ("none", "count", "tcpdump", "record")
LOCAL = ("internal", "veth")
TUNNELS = ("gre", "erspan", "vxlan")
OUTPUTS = (*LOCAL, *TUNNELS, "vlan")
PLAN_TUNNELS = ("off", "vxlan")
MIN_RULES, MAX_RULES = 4, 65536  # flows differ in 16 bits of an IP address
SELECT = r"all|(client|server)\d{1,3}(:in|:out)?|vlan:\d{1,4}"

HELP = {
    "mirrors": f"number of mirrors, 0 to {MAX_MIRRORS}",
    "select": "what each mirror copies: all, client0 (its port, both ways), client0:in or client0:out (as the switch"
    " sees it), vlan:N",
    "output": "where each mirror's copies go: internal or veth (a port, in a namespace of its own); gre, erspan, vxlan"
    " (a tunnel to a second host); vlan (RSPAN: a VLAN of its own, to a trunk port)",
    "readers": "who reads the copies at the end of each mirror: none, count (a process that receives and counts each),"
    " tcpdump (to /dev/null), record (labkit's own recorder, to /dev/null)",
    "snaplen": "bytes of a packet that a mirror copies; none: all",
    "vlans": "number of VLANs, to which pairs belong in turn; 0: none",
    "uplink_bps": "rate of the link by which tunnels leave the host (tbf); none: unlimited",
    "uplink_mtu": "MTU of that link; none: as large as the copies with their outer headers need",
    "cpu": "the CPU on which ovs-vswitchd runs; none: any",
    "flow_limit": "most flows in the datapath's table; none: 200,000, the most",
    "sampling": "sflow:N or ipfix:N samples one packet of N; none: no sampling",
    "case": f"a use case of the OVS test plan, with a network and as many VMs as pairs: {', '.join(CASES)}; none: pairs"
    " of endpoints, and a switch that learns",
    "rules": "what the rules of a case match beside the input port: l2 (low bits of the destination MAC address) or l3"
    " (of the IP address)",
    "rules_count": f"number of rules of a case, {MIN_RULES} to {MAX_RULES}",
    "tunnel": "how the network of a case reaches the switch: off (directly) or vxlan",
}


@dataclass(frozen=True)
class SwitchOptions:
    """The options of a switch; HELP describes each."""

    mirrors: int = 0
    select: str = "client0"
    output: str = "veth"
    readers: str = "none"
    snaplen: int | None = None
    vlans: int = 0
    uplink_bps: float | None = None
    uplink_mtu: int | None = None
    cpu: int | None = None
    flow_limit: int | None = None
    sampling: str | None = None
    case: str | None = None
    rules: str = "l2"
    rules_count: int = 1000
    tunnel: str = "off"

    def name(self, topology: str) -> str:
        """Return the name of `topology` with those of these options that differ from the defaults."""
        plain = SwitchOptions()
        words = [
            f"{one.name}={value:.0f}" if isinstance(value, float) else f"{one.name}={value}"
            for one in dataclasses.fields(self)
            if (value := getattr(self, one.name)) != getattr(plain, one.name)
        ]
        return "+".join([topology, *words])


def options(name: str) -> SwitchOptions:
    """Parse the options in a topology's name. Raises BadInput, with one sentence, for invalid ones."""
    topology, *words = name.split("+")
    given: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if key not in HELP or not equals:
            raise BadInput(
                f"{name}: {topology} has no option {word!r}: choose {', '.join(f'{one}=' for one in HELP)}"
            )
        if key in given:
            raise BadInput(f"{name}: {key} is given twice")
        given[key] = _value(name, key, text)
    result = SwitchOptions(**given)
    _check(name, result)
    return result


def why_no_tags(name: str) -> str | None:
    """Return why a switch with this name passes no frame with a VLAN tag; None if it does."""
    wanted = options(name)
    if not wanted.vlans and wanted.output != "vlan":
        return None
    why = f"vlans={wanted.vlans}" if wanted.vlans else "output=vlan"
    return f"{why} makes the ends' ports access ports"


def copies_leave(name: str) -> bool:
    """Return whether the copies of a switch with this name go through a tunnel to another host."""
    wanted = options(name)
    return wanted.mirrors > 0 and wanted.output in TUNNELS


def shares_ends(name: str) -> bool:
    """Return whether an end of a switch with this name belongs to several pairs, as those of a use case do."""
    return options(name).case is not None


def _choice(*known: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if text not in known:
            raise ValueError(f"choose {', '.join(known)}")
        return text

    return checked


def _number(minimum: float, maximum: float, whole: bool = True) -> Callable[[str], float]:
    def checked(text: str) -> float:
        value = int(text) if whole and re.fullmatch(r"\d{1,9}", text) else _float(text, whole)
        if not minimum <= value <= maximum:
            raise ValueError(f"the range is {minimum:g} to {maximum:g}")
        return value

    return checked


def _float(text: str, whole: bool) -> float:
    if whole or not re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", text):
        raise ValueError("a number is needed" if not whole else "a whole number is needed")
    return float(text)


def _form(pattern: str, example: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"write for example {example}")
        return text

    return checked


def _selection(text: str) -> str:
    if re.fullmatch(r"mirror\d+|trunk|uplink", text):
        raise ValueError(
            "a mirror cannot select the output of a mirror, because its own copies would be copied again: choose a port"
            " of an end, such as client0"
        )
    return _form(SELECT, "all, client0, server0:in, vlan:1")(text)


_VALUES: dict[str, Callable[[str], Any]] = {
    "mirrors": _number(0, MAX_MIRRORS),
    "select": _selection,
    "output": _choice(*OUTPUTS),
    "readers": _choice(*READERS),
    "snaplen": _number(14, 65535),
    "vlans": _number(0, 500),
    "uplink_bps": _number(1e5, 1e11, whole=False),
    "uplink_mtu": _number(68, 65535),
    "cpu": _number(0, 4095),
    "flow_limit": _number(1, 200_000),
    "sampling": _form(r"(sflow|ipfix):[1-9]\d{0,5}", "sflow:100 or ipfix:100"),
    "case": _choice(*CASES),
    "rules": _choice(*KINDS),
    "rules_count": _number(MIN_RULES, MAX_RULES),
    "tunnel": _choice(*PLAN_TUNNELS),
}


def _value(name: str, key: str, text: str) -> Any:
    try:
        return _VALUES[key](text)
    except ValueError as error:
        raise BadInput(f"{name}: {key}={text}: {error}") from None


def _check(name: str, parameters: SwitchOptions) -> None:
    """Raise BadInput for options that contradict each other."""
    plain = SwitchOptions()
    if parameters.case is None:
        for key in ("rules", "rules_count", "tunnel"):
            if getattr(parameters, key) != getattr(plain, key):
                raise BadInput(f"{name}: {key} needs a case: add case={'|'.join(CASES)}")
    else:
        for key in ("mirrors", "vlans", "sampling"):
            if getattr(parameters, key) != getattr(plain, key):
                raise BadInput(f"{name}: a case does not use {key}; leave it out")
        if parameters.case == "vm_to_vm" and parameters.tunnel != "off":
            raise BadInput(
                f"{name}: tunnel={parameters.tunnel}: vm_to_vm has no network behind a tunnel; use tunnel=off"
            )
    for key in ("select", "output", "readers", "snaplen"):
        if not parameters.mirrors and getattr(parameters, key) != getattr(plain, key):
            raise BadInput(f"{name}: {key} needs mirrors: add mirrors=1")
    for key in ("uplink_bps", "uplink_mtu"):
        if getattr(parameters, key) is not None and parameters.output not in TUNNELS:
            raise BadInput(f"{name}: {key} needs a tunnel: add output={'|'.join(TUNNELS)}")
    if parameters.select.startswith("vlan:"):
        number = int(parameters.select.partition(":")[2])
        if not (1 <= number <= parameters.vlans or number == parameters.vlans == 0):
            there = (
                f"VLANs 1 to {parameters.vlans}"
                if parameters.vlans
                else "no VLANs: add vlans=N, or use select=vlan:0"
            )
            raise BadInput(f"{name}: select={parameters.select}, but there are {there}")
