"""Wildcard rules of the OVS test plan, checked with a classifier written for this test."""

import collections
import ipaddress
import re

import pytest

from labkit.common.switch_options import CASES
from labkit.measure.topologies.open_vswitch.rules import Port, directions, rules

NET = Port(1, "02:00:00:00:00:04")
VMS = [Port(10 + number, f"02:00:00:00:00:0{number}") for number in range(4)]
ROUTER = "02:00:00:06:00:00"


def number_of(text: str) -> int:
    return int(text.replace(":", ""), 16) if text.count(":") == 5 else int(ipaddress.ip_address(text))


def classifier(lines: list[str]) -> dict[int, list[tuple[int, int, int, str]]]:
    """Return priority, value, mask and actions of each rule, by input port."""
    result: dict[int, list[tuple[int, int, int, str]]] = collections.defaultdict(list)
    for line in lines:
        parts = re.fullmatch(
            r"priority=(\d+),in_port=(\d+),(?:dl_dst|ip,nw_dst|ipv6,ipv6_dst)=([^/]+)/([^,]+),actions=(.*)",
            line,
        )
        assert parts, line
        value, mask = number_of(parts[3]), number_of(parts[4])
        result[int(parts[2])].append((int(parts[1]), value, mask, parts[5]))
    return result


def matched(of: list[tuple[int, int, int, str]], value: int) -> list[tuple[int, int, int, str]]:
    """Return the rules that match a value, highest priority first. No two have the same priority."""
    matching = sorted((one for one in of if value & one[2] == one[1]), reverse=True)
    assert len({one[0] for one in matching}) == len(matching)
    return matching


def test_first_512_rules_compare_nine_bits_and_the_others_overlap() -> None:
    lines = rules("l2", 1000, 4, directions("net_to_vm", NET, VMS), ROUTER)
    assert len(set(lines)) == 1000
    [of] = classifier(lines).values()
    assert [mask.bit_count() for _, _, mask, _ in of] == [9] * 512 + [10] * 488
    overlapping = [matched(of, value) for value in range(512, 1000)]
    assert {len(matching) for matching in overlapping} == {2}
    assert {matching[0][2] for matching in overlapping} == {0x3FF}


@pytest.mark.parametrize(("kind", "family"), [("l2", 4), ("l3", 4), ("l3", 6)])
@pytest.mark.parametrize("case", CASES)
def test_every_value_of_every_port_is_matched_and_every_rule_used(case: str, family: int, kind: str) -> None:
    by_port = classifier(rules(kind, 1000, family, directions(case, NET, VMS), ROUTER))
    assert set(by_port) == ({1} if case == "net_to_vm" else {10, 11, 12, 13})
    for of in by_port.values():
        used = [matched(of, value)[0] for value in range(1024)]
        assert set(used) == set(of)


@pytest.mark.parametrize(
    ("case", "expected"),
    [("net_to_vm", {10: 256, 11: 256, 12: 256, 13: 256}), ("vm_to_net", {1: 256}), ("vm_to_vm", {})],
)
def test_load_is_spread_evenly(case: str, expected: dict[int, int]) -> None:
    for port, of in classifier(rules("l2", 1000, 4, directions(case, NET, VMS), ROUTER)).items():
        values = range(1024) if case == "net_to_vm" else range(256)
        outputs = collections.Counter(
            int(matched(of, value)[0][3].removeprefix("output:")) for value in values
        )
        if case == "vm_to_vm":
            assert set(outputs) == {10, 11, 12, 13} - {port}
            assert max(outputs.values()) - min(outputs.values()) <= 2
        else:
            assert outputs == expected


@pytest.mark.parametrize("kind", ["l2", "l3"])
@pytest.mark.parametrize(
    ("case", "match", "action"),
    [
        ("net_to_vm", "dl_vlan=7,", "pop_vlan,"),
        ("vm_to_net", "udp,", "push_vlan:0x8100,set_field:4103->vlan_vid,"),  # 0x1000: there is a tag
    ],
)
def test_rules_of_a_vlan_are_the_others_and_change_the_tag(
    case: str, match: str, action: str, kind: str
) -> None:
    plain, tagged = (
        rules(kind, 100, 4, directions(case, net, VMS), ROUTER) for net in (NET, Port(1, NET.mac, vlan=7))
    )
    for line, other in zip(plain, tagged, strict=True):
        assert other.count(f",{match}") == other.count(f"{action}output:") == 1
        assert other.replace(match, "").replace(action, "") == line


@pytest.mark.parametrize("case", ["net_to_vm", "vm_to_vm"])
@pytest.mark.parametrize("count", [17, 1000])
def test_number_of_a_vm_leads_to_it(case: str, count: int) -> None:
    for port, of in classifier(rules("l3", count, 4, directions(case, NET, VMS), ROUTER)).items():
        for number, vm in enumerate(VMS):
            if vm.number != port:
                [*_, actions] = matched(of, number)[0]
                assert actions == f"mod_dl_src:{ROUTER},mod_dl_dst:{vm.mac},dec_ttl,output:{vm.number}"
