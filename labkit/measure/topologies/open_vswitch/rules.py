"""The wildcard rules of the OVS test plan (Netronome, OVS Test Plan), as OpenFlow.

A rule matches an input port and the low bits of the destination: of the MAC address (`l2`) or of the IP address (`l3`).
Rule number `i` matches the value `i`. The first 512 rules compare nine bits. The others compare as many bits as their
number has, so each overlaps with one of the first, and goes ahead of it. With several input ports the rules belong to
them in turn: with four, two of the nine bits are the port's, so every packet of every port meets exactly one rule.

Where an end is in a VLAN, the rules match the tag of its frames and take it off, or add it to frames for this end. A
ping stays without a tag, because the end has no VLAN device that would answer.
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.common.errors import Failed
from labkit.common.units import counted
from labkit.measure.topologies.open_vswitch.switch import Switch
from labkit.system import machine, process

# The type of a VLAN tag, and the bit of vlan_vid for it (ovs-fields(7))
ETH_P_8021Q, OFPVID_PRESENT = 0x8100, 0x1000
FIRST = 512  # rules that compare the same number of bits
PRIORITY = 100  # of a rule that compares no bit; each bit adds 1
INSTALL_S = 60.0  # 64,000 rules take 1 to 4 s


@dataclass(frozen=True)
class Port:
    """A port of the switch: its OpenFlow number, and the MAC address of the end behind it, with its VLAN if its frames
    have a tag."""

    number: int
    mac: str
    vlan: int | None = None


@dataclass(frozen=True)
class Direction:
    """What comes in at a port, and where each value of the destination's low bits goes."""

    arriving: Port
    target: Callable[[int], Port]


def directions(case: str, net: Port, vms: Sequence[Port]) -> list[Direction]:
    """Return the directions of a case: from the network to the VMs in turn, from each VM to the network, or from each
    VM to the others (full mesh). The value `k` goes to VM number `k`, so a VM with such an address is reached."""
    if case == "net_to_vm":
        return [Direction(net, lambda value: vms[value % len(vms)])]
    if case == "vm_to_net":
        return [Direction(vm, lambda _value: net) for vm in vms]
    return [Direction(vm, _others(number, vms)) for number, vm in enumerate(vms)]


def _others(own: int, vms: Sequence[Port]) -> Callable[[int], Port]:
    """Each value goes to the VM of its number; what would come back to the sender goes to the others in turn."""
    others = [vm for number, vm in enumerate(vms) if number != own]

    def target(value: int) -> Port:
        number, turn = value % len(vms), value // len(vms)
        return vms[number] if number != own else others[turn % len(others)]

    return target


def bits(number: int, rules_count: int, ports_count: int) -> int:
    """Return how many low bits rule `number` of `rules_count` compares, with so many input ports."""
    first = (min(FIRST, rules_count) // ports_count).bit_length() - 1
    return max(first, (number // ports_count).bit_length())


def rules(kind: str, count: int, family: int, towards: Sequence[Direction], router_mac: str) -> list[str]:
    """Return `count` rules in the syntax of ovs-ofctl(8). An L3 rule also sets both MAC addresses, the source to
    `router_mac`, and decrements the TTL."""
    result = []
    for number in range(count):
        direction, value = towards[number % len(towards)], number // len(towards)
        arriving, target = direction.arriving, direction.target(value)
        compared = bits(number, count, len(towards))
        match = _l2(value, compared) if kind == "l2" else _l3(value, compared, family)
        actions = f"output:{target.number}"
        if arriving.vlan is not None:
            match, actions = f"dl_vlan={arriving.vlan},{match}", f"pop_vlan,{actions}"
        if target.vlan is not None:
            tag = f"push_vlan:{ETH_P_8021Q:#x},set_field:{OFPVID_PRESENT | target.vlan}->vlan_vid"
            match, actions = f"{'udp' if family == 4 else 'udp6'},{match}", f"{tag},{actions}"
        if kind == "l3":
            actions = f"mod_dl_src:{router_mac},mod_dl_dst:{target.mac},dec_ttl,{actions}"
        result.append(f"priority={PRIORITY + compared},in_port={arriving.number},{match},actions={actions}")
    return result


def _l2(value: int, compared: int) -> str:
    return f"dl_dst={_mac(value)}/{_mac((1 << compared) - 1)}"


def _l3(value: int, compared: int, family: int) -> str:
    of = ipaddress.IPv4Address if family == 4 else ipaddress.IPv6Address
    field = "ip,nw_dst" if family == 4 else "ipv6,ipv6_dst"
    return f"{field}={of(value)}/{of((1 << compared) - 1)}"


def _mac(value: int) -> str:
    return value.to_bytes(6, "big").hex(":")


def install(switch: Switch, bridge: str, lines: Sequence[str]) -> None:
    """Add these rules to a bridge in one bundle: all of them or none. Raises Failed with the switch's words."""
    argv = [machine.program("ovs-ofctl"), "--bundle", "add-flows", f"unix:{switch.folder / bridge}.mgmt", "-"]
    given = "".join(f"{line}\n" for line in lines).encode()
    ended = process.run([*switch.space.prefix, *argv], INSTALL_S, given)
    if ended.returncode != 0:
        text = " ".join(ended.stderr.split())
        raise Failed(
            f"Open vSwitch refused {counted(len(lines), 'rule')}: {text[:300] or 'it gave no reason'}"
        )
