"""The options of a switch, `ovs_netdev+mirrors=4+readers=count`: in a topology's name, and as columns of a row.

Options are part of the name, so that switches with different mirrors are arms of one experiment. Users write the name,
and tables show it. Everything else has the options as data: the experiment as `SwitchOptions`, a row in columns.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from labkit.common.errors import BadInput, choose
from labkit.common.limits import Form, Limit, OneOf, Within


class Datapath(StrEnum):
    """What forwards packets: the kernel's module, or ovs-vswitchd with packet sockets, AF_XDP sockets or DPDK."""

    KERNEL = "system"
    SOCKETS = "netdev"
    AF_XDP = "afxdp"
    DPDK = "dpdk"

    @property
    def in_userspace(self) -> bool:
        """Whether ovs-vswitchd itself forwards."""
        return self is not Datapath.KERNEL

    @property
    def polls(self) -> bool:
        """Whether a thread of ovs-vswitchd polls the ports without a pause."""
        return self in (Datapath.AF_XDP, Datapath.DPDK)

    @property
    def type(self) -> str:
        """The `datapath_type` in the switch's database."""
        return "netdev" if self.in_userspace else "system"


NAMES = {  # by topology
    "ovs": Datapath.KERNEL,
    "ovs_netdev": Datapath.SOCKETS,
    "ovs_afxdp": Datapath.AF_XDP,
    "ovs_dpdk": Datapath.DPDK,
}
*_first, _last = NAMES
ANY_NAME = f"{', '.join(_first)} or {_last}"
# Of datapaths whose buffers have one size: what has them, and the largest MTU. The driver of DPDK 22.11 takes frames of
# 1514 bytes (max_rx_pktlen in rte_eth_af_packet.c). A frame of AF_XDP has one chunk of 4,096 bytes without the headroom
# of XDP, 256, and that of Open vSwitch, 128 (lib/xdpsock.h).
LARGEST_MTUS = {Datapath.DPDK: ("DPDK's driver af_packet", 1500), Datapath.AF_XDP: ("a port of AF_XDP", 3698)}
CASES = ("net_to_vm", "vm_to_net", "vm_to_vm")
KINDS = ("l2", "l3")  # of rules
MAX_MIRRORS = 32  # MAX_MIRRORS of Open vSwitch (ofproto/ofproto-dpif-mirror.h): a bit of 32 for each
READERS = ("none", "count", "tcpdump", "record")
LOCAL = ("internal", "veth")
TUNNELS = ("gre", "erspan", "vxlan")
OUTPUTS = (*LOCAL, *TUNNELS, "vlan")
PLAN_TUNNELS = ("off", "vxlan", "vlan")
MIN_RULES, MAX_RULES = 4, 65536  # flows differ in 16 bits of an IP address
SELECT = r"all|(client|server)\d{1,3}(:in|:out)?|vlan:\d{1,4}"
COPIES = r"mirror\d+|trunk|uplink"  # ports that mirrors make


# Without these an option means nothing: whether a switch has it, and what to add.
_NEEDS: dict[str, tuple[Callable[[SwitchOptions], bool], str]] = {
    "case": (lambda one: one.case is not None, f"a case: add case={'|'.join(CASES)}"),
    "mirrors": (lambda one: one.mirrors > 0, "mirrors: add mirrors=1"),
    "tunnel": (lambda one: one.output in TUNNELS, f"a tunnel: add output={'|'.join(TUNNELS)}"),
}


@dataclass(frozen=True)
class Option:
    """One option: what it means, what it may be, and the row's column, with its unit. `needs`: a key of _NEEDS, or
    ""."""

    help: str
    limit: Limit
    unit: str = ""
    needs: str = ""
    column: str = ""
    type: Literal["text", "integer", "number"] = "text"  # by the annotation of the field


def _option(default: Any, *given: Any, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"option": Option(*given, **more)})


@dataclass(frozen=True)
class SwitchOptions:
    """A switch: the topology's name without options, and each option. A new option is one field here."""

    topology: str = "ovs"
    mirrors: int = _option(0, f"number of mirrors, 0 to {MAX_MIRRORS}", Within(0, MAX_MIRRORS), "1")
    select: str = _option(
        "client0",
        "what each mirror copies: all, client0 (its port, both ways), client0:in or client0:out (as the switch sees"
        " it), vlan:N",
        Form(f"{SELECT}|{COPIES}", "for example all, client0, server0:in, vlan:1"),
        needs="mirrors",
    )
    output: str = _option(
        "veth",
        "where each mirror's copies go: internal or veth (a port, in a namespace of its own); gre, erspan, vxlan (a"
        " tunnel to a second host); vlan (RSPAN: a VLAN of its own, to a trunk port)",
        OneOf(OUTPUTS),
        needs="mirrors",
    )
    readers: str = _option(
        "none",
        "who reads the copies at the end of each mirror: none, count (a process that receives and counts each), tcpdump"
        " (to /dev/null), record (labkit's own recorder, to /dev/null)",
        OneOf(READERS),
        needs="mirrors",
    )
    snaplen: int | None = _option(
        None, "bytes of a packet that a mirror copies; none: all", Within(14, 65535), "byte", "mirrors"
    )
    vlans: int = _option(0, "number of VLANs, to which pairs belong in turn; 0: none", Within(0, 500), "1")
    uplink_bps: float | None = _option(
        None,
        "rate of the link by which tunnels leave the host (tbf); none: unlimited",
        Within(1e5, 1e11),
        "bit/s",
        "tunnel",
    )
    uplink_mtu: int | None = _option(
        None,
        "MTU of that link; none: as large as the copies with their outer headers need",
        Within(68, 65535),
        "byte",
        "tunnel",
    )
    cpu: int | None = _option(
        None,
        "the CPU on which ovs-vswitchd runs; none: any",
        Within(0, 4095),
        column="switch_cpu",  # `cpu` is the machine's
    )
    flow_limit: int | None = _option(
        None, "most flows in the datapath's table; none: 200,000, the most", Within(1, 200_000), "1"
    )
    sampling: str | None = _option(
        None,
        "sflow:N or ipfix:N samples one packet of N; none: no sampling",
        Form(r"(sflow|ipfix):[1-9]\d{0,5}", "for example sflow:100 or ipfix:100"),
    )
    case: str | None = _option(
        None,
        f"a use case of the OVS test plan, with a network and as many VMs as pairs: {', '.join(CASES)}; none: pairs of"
        " endpoints, and a switch that learns",
        OneOf(CASES),
        column="use_case",
    )
    rules: str = _option(
        "l2",
        "what the rules of a case match beside the input port: l2 (low bits of the destination MAC address) or l3 (of"
        " the IP address)",
        OneOf(KINDS),
        needs="case",
    )
    rules_count: int = _option(
        1000,
        f"number of rules of a case, {MIN_RULES} to {MAX_RULES}",
        Within(MIN_RULES, MAX_RULES),
        "1",
        "case",
    )
    tunnel: str = _option(
        "off",
        "how the network of a case reaches the switch: off (directly), vxlan, or vlan (its frames have an 802.1Q tag,"
        " which the rules take off or add)",
        OneOf(PLAN_TUNNELS),
        needs="case",
    )

    @property
    def datapath(self) -> Datapath:
        """What forwards packets."""
        return NAMES[self.topology]

    @property
    def name(self) -> str:
        """The topology's name with those of these options that differ from the defaults."""
        words = [
            f"{name}={value:.0f}" if isinstance(value, float) else f"{name}={value}"
            for name in OPTIONS
            if (value := getattr(self, name)) != USUAL[name]
        ]
        return "+".join([self.topology, *words])

    @property
    def without_mirrors(self) -> SwitchOptions:
        of_mirrors = [name for name, one in OPTIONS.items() if one.needs in ("mirrors", "tunnel")]
        return replace(self, **{name: USUAL[name] for name in ("mirrors", *of_mirrors)})

    @property
    def copies_leave(self) -> bool:
        """Whether its copies go through a tunnel to another host."""
        return self.mirrors > 0 and self.output in TUNNELS

    @property
    def why_no_tags(self) -> str | None:
        """Why it passes no frame with a VLAN tag; None if it does."""
        if self.tunnel == "vlan":
            return "its rules match the tag of tunnel=vlan alone"
        if not self.vlans and self.output != "vlan":
            return None
        why = f"vlans={self.vlans}" if self.vlans else "output=vlan"
        return f"{why} makes the ends' ports access ports"

    def check_load(self, _name: str, pairs: int, mtu_bytes: int, _family: int) -> None:
        """Raise BadInput for an MTU whose frames do not fit into its buffers, for a mirror of an end that does not
        exist, or for too few rules."""
        mirrored_end(self, pairs)
        what, most = LARGEST_MTUS.get(self.datapath, ("", mtu_bytes))
        if mtu_bytes > most:
            limit = f"{what} takes an MTU of at most {most}"
            raise BadInput(f"mtu_bytes={mtu_bytes}: {limit}: choose a smaller one, or ovs_netdev")
        if self.case is not None and self.rules_count < pairs**2:
            raise BadInput(
                f"rules_count={self.rules_count} is too few for pairs={pairs}: {pairs**2} rules are the minimum for so"
                " many VMs"
            )

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a row about the switch; null for options that mean nothing beside the others."""
        own = {name: one for name, one in OPTIONS.items() if not one.needs or _NEEDS[one.needs][0](self)}
        return NO_SWITCH | {
            "datapath": str(self.datapath),
            **{one.column or name: getattr(self, name) for name, one in own.items()},
        }


_TYPES: dict[str, Literal["text", "integer", "number"]] = {"str": "text", "int": "integer", "float": "number"}
OPTIONS: dict[str, Option] = {
    one.name: replace(one.metadata["option"], type=_TYPES[str(one.type).removesuffix(" | None")])
    for one in dataclasses.fields(SwitchOptions)
    if one.metadata
}
USUAL = {name: getattr(SwitchOptions(), name) for name in OPTIONS}
NO_SWITCH: dict[str, Any] = dict.fromkeys(
    ["datapath", *(one.column or name for name, one in OPTIONS.items())]
)  # the columns of a row whose topology has no switch


def is_switch(topology: object) -> bool:
    """Return whether this is the name of a switch, with or without options."""
    return str(topology).partition("+")[0] in NAMES


@functools.lru_cache(maxsize=1024)
def options(name: str) -> SwitchOptions:
    """Parse the options in a topology's name. Raises BadInput, with one sentence, for invalid ones."""
    topology, *words = name.split("+")
    given: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if key not in OPTIONS or not equals:
            choices = choose(f"{key}=", [f"{one}=" for one in OPTIONS])
            raise BadInput(f"{name}: {topology} has no option {word!r}: {choices}")
        if key in given:
            raise BadInput(f"{name}: {key} is given twice")
        given[key] = OPTIONS[key].limit.parse(f"{name}: {key}", text)
    result = SwitchOptions(topology, **given)
    _check(name, result)
    return result


def columns(topology: object) -> dict[str, Any]:
    """Return the columns of a row about the switch of this topology. Raises BadInput for invalid options."""
    return options(str(topology)).columns if is_switch(topology) else NO_SWITCH


def of_row(row: Mapping[Any, Any]) -> SwitchOptions:
    """Return the switch of a row of a table, of which `datapath` is not null."""
    [topology] = [name for name, datapath in NAMES.items() if datapath == row["datapath"]]
    given: dict[str, Any] = {}
    for name, one in OPTIONS.items():
        value = row[one.column or name]
        if value is not None and value == value:  # a table has NaN for null, and whole numbers as floats
            given[name] = int(value) if one.type == "integer" else value
    return SwitchOptions(topology, **given)


def mirrored_end(wanted: SwitchOptions, pairs: int) -> tuple[str, int] | None:
    """Return the role and the number of the end whose packets are mirrored, or None if `select` names no end.

    Raises BadInput if there is no such end.
    """
    found = re.match(r"(client|server)(\d+)", wanted.select)
    if found is None:
        return None
    role, number = found[1], int(found[2])
    if number >= pairs:
        raise BadInput(f"select={wanted.select}: there is no {found[0]}; the last one is {role}{pairs - 1}")
    return role, number


def _check(name: str, wanted: SwitchOptions) -> None:
    """Raise BadInput for options that contradict each other."""
    for key, one in OPTIONS.items():
        if getattr(wanted, key) == USUAL[key]:
            continue
        if one.needs and not _NEEDS[one.needs][0](wanted):
            raise BadInput(f"{name}: {key} needs {_NEEDS[one.needs][1]}")
        if wanted.case is not None and key in ("mirrors", "vlans", "sampling"):
            raise BadInput(f"{name}: a case does not use {key}; leave it out")
    if re.fullmatch(COPIES, wanted.select):
        raise BadInput(
            f"{name}: select={wanted.select}: a mirror cannot select the output of a mirror, because its own copies"
            " would be copied again: choose a port of an end, such as client0"
        )
    if wanted.case == "vm_to_vm" and wanted.tunnel != "off":
        why = "vm_to_vm has no network behind a tunnel; use tunnel=off"
        raise BadInput(f"{name}: tunnel={wanted.tunnel}: {why}")
    if wanted.select.startswith("vlan:"):
        number = int(wanted.select.partition(":")[2])
        if not (1 <= number <= wanted.vlans or number == wanted.vlans == 0):
            there = (
                f"VLANs 1 to {wanted.vlans}"
                if wanted.vlans
                else "no VLANs: add vlans=N, or use select=vlan:0"
            )
            raise BadInput(f"{name}: select={wanted.select}, but there are {there}")
