"""Make up rows of the experiment `overlay`: the report's 84-byte ping through VXLAN over GRE with its correct lengths,
reachability, and the loss while a spine is down."""

import itertools
from typing import Any

import pandas as pd
from synthetic_rows import MACHINE

from labkit.analysis.load import complete

Row = dict[str, Any]
PAYLOAD = 56
HEADER = {"Ethernet": 14, "IP": 20, "UDP": 8, "VXLAN": 8, "GRE": 4, "ICMP": 8}
INNER = ["Ethernet", "IP 20.0.0.1 > 20.0.0.3", "ICMP echo request"]
VXLAN = ["IP 21.0.0.1 > 23.0.0.1", "UDP 4900", "VXLAN 30", *INNER]
FABRIC = ["Ethernet", "IP 26.0.0.2 > 28.0.0.2", "GRE", *VXLAN]
# From cs1 to cs5: every interface that sees the packet, and the headers there.
HOPS: list[tuple[str, str, str, list[str]]] = [
    ("cs1", "cs1_br1", "out", INNER),
    ("con_ns1", "br1_cs1", "in", INNER),
    ("con_ns1", "vxlan-cont", "out", INNER),
    ("con_ns1", "br1_lc1", "out", ["Ethernet", *VXLAN]),
    ("lc1", "lc1_br1", "in", ["Ethernet", *VXLAN]),
    ("lc1", "gretun-cont", "out", VXLAN),
    ("lc1", "lc1_sc2", "out", FABRIC),
    ("sc2", "sc2_lc1", "in", FABRIC),
    ("sc2", "sc2_lc2", "out", FABRIC),
    ("lc2", "lc2_sc2", "in", FABRIC),
    ("lc2", "gretun-cont", "in", VXLAN),
    ("lc2", "lc2_br3", "out", ["Ethernet", *VXLAN]),
    ("con_ns3", "br3_lc2", "in", ["Ethernet", *VXLAN]),
    ("con_ns3", "vxlan-cont", "in", INNER),
    ("con_ns3", "br3_cs5", "out", INNER),
    ("cs5", "cs5_br3", "in", INNER),
]
TENANTS = {"cs1": "con_ns1", "cs2": "con_ns1", "cs5": "con_ns3", "cs3": "con_ns2", "cs4": "con_ns2"}
ADDRESSES = {"cs1": "20.0.0.1", "cs2": "20.0.0.2", "cs5": "20.0.0.3", "cs3": "30.0.0.1", "cs4": "30.0.0.2"}
EMULATED = {"where": "vm:debian", "kernel": "6.12.9-amd64", "accelerator": "tcg"}


def _row(part: str, **more: Any) -> Row:
    return {
        "experiment": "overlay", "run": "a", "part": part, "topology": "overlay", "protocol": "ping", "status": "ok",
        "reason": None, "doubts": None, "where": "here", **MACHINE, **more,
    }  # fmt: skip


def layers(texts: list[str], payload_bytes: int = PAYLOAD) -> list[Row]:
    """Return the layers of a frame with these headers, outermost first."""
    result: list[Row] = []
    length = payload_bytes
    for text in reversed(texts):
        name = text.split()[0]
        length += HEADER[name]
        result.append(
            {"name": name.lower(), "text": text, "header_bytes": HEADER[name], "length_bytes": length}
        )
    return result[::-1]


def reply(texts: list[str]) -> list[str]:
    """Return the same headers in the opposite direction."""

    def turned(text: str) -> str:
        if " > " not in text:
            return text.replace("request", "reply")
        name, one, _, other = text.split()
        return f"{name} {other} > {one}"

    return [turned(text) for text in texts]


def journey(
    packet: int,
    what: str,
    hops: list[tuple[str, str, str, list[str]]],
    payload_bytes: int = PAYLOAD,
    **more: Any,
) -> list[Row]:
    """Return one packet over these hops, which are 4 µs apart."""
    result = []
    for position, (namespace, interface, direction, texts) in enumerate(hops):
        stack = layers(texts, payload_bytes)
        result.append(
            _row(
                "path", packet=packet, what=what, hop=f"{namespace}:{interface}", namespace=namespace,
                interface=interface, position=position, direction=direction, time_s=position * 4e-6,
                length_bytes=stack[0]["length_bytes"], stack=" / ".join(texts), layers=stack, dropped_count=0,
                skipped_count=0, **more,
            )
        )  # fmt: skip
    return result


def path(**more: Any) -> pd.DataFrame:
    """Return the rows of a ping from cs1 to cs5: request and reply."""
    turn = {"in": "out", "out": "in"}
    back = [(space, name, turn[way], reply(texts)) for space, name, way, texts in HOPS[::-1]]
    rows = journey(0, "cs1 > cs5 echo request", HOPS, **more)
    return complete(pd.DataFrame(rows + journey(1, "cs5 > cs1 echo reply", back, **more)))


def _nodes(source: str, target: str, spine: str) -> list[str]:
    """Return the path between two containers. The gateway of all of 20.0.0.0 is lc1, behind bridge 1."""
    tenant, other = TENANTS[source], TENANTS[target]
    leaves = {"con_ns1": "lc1", "con_ns2": "lc2", "con_ns3": "lc2"}
    if tenant == other:
        return [source, tenant, target]
    if {tenant, other} == {"con_ns2", "con_ns3"}:
        return [source, tenant, "lc2", spine, "lc1", "con_ns1", "lc1", spine, "lc2", other, target]
    return [source, tenant, leaves[tenant], spine, leaves[other], other, target]


def reachability(**more: Any) -> pd.DataFrame:
    """Return the rows from every container to every other. All answer; two take the other spine than the description
    says."""
    rows = []
    for number, (source, target) in enumerate(itertools.permutations(TENANTS, 2)):
        seen = "sc1" if (source, target) in {("cs1", "cs4"), ("cs3", "cs2")} else "sc2"
        promised, path = _nodes(source, target, "sc2"), _nodes(source, target, seen)
        crossed = "lc1" in path and "lc2" in path
        same = ADDRESSES[source].split(".")[0] == ADDRESSES[target].split(".")[0]
        ttl = 64 if same else 62  # otherwise both leaves forward it
        rtt = (60 if crossed else 20) * 1e-6 + number * 1e-7
        rows.append(
            _row(
                "reachability", routes="static", source=source, target=target, source_address=ADDRESSES[source],
                target_address=ADDRESSES[target], sent_count=5, received_count=5, ttl=ttl, expected_ttl=ttl, path=path,
                expected_paths=[promised], spine=seen if crossed else None, as_expected=path == promised,
                rtt_min_s=rtt * 0.8, rtt_p50_s=rtt, rtt_max_s=rtt * 2, **more,
            )
        )  # fmt: skip
    return complete(pd.DataFrame(rows))


# The share of a second's probes that goes unanswered while the spine is down, and how many are late: by routes,
# failure, and whether routes over dead links are ignored.
OUTAGES: dict[tuple[str, str, bool], tuple[float, bool]] = {
    ("static", "carrier", False): (1.0, True), ("metric", "carrier", False): (1.0, True),
    ("static", "carrier", True): (1.0, False), ("metric", "carrier", True): (0.0, False),
    ("ecmp", "silent", False): (1.0, False), ("static", "silent", False): (1.0, False),
}  # fmt: skip


def _probes(outage_s: float, late: bool) -> list[list[float | None]]:
    """Return a probe every 20 ms for 3 s. Those of the first 1.1 s are answered normally."""
    result: list[list[float | None]] = []
    for number in range(150):
        at = round(0.02 * number, 2)
        usual = 60e-6 + 1e-6 * (number % 7)
        gone = 1.1 <= at < 1.1 + outage_s
        result.append([at, (2.1 - at + usual if late else None) if gone else usual])
    return result


def failure(**more: Any) -> pd.DataFrame:
    """Return the rows of a failure: spine 2 is down from 1.1 s to 2.1 s."""
    rows = []
    for (routes, how, noticed), (outage_s, late) in OUTAGES.items():
        probes = _probes(outage_s, late)
        during = [None, None] if outage_s else ["sc1", "sc1"]
        rows.append(
            _row(
                "failure", routes=routes, failure=how, failed="sc2", ignores_linkdown=noticed, interval_s=0.02,
                sent_count=len(probes), received_count=sum(rtt is not None for _, rtt in probes), outage_s=outage_s,
                outage_since_s=1.1, outage_over=True, down_s=1.1, up_s=2.1, probes=probes, path_before=["sc2", "sc2"],
                path_during=during, path_after=["sc2", "sc2"],
                expected_during=["sc1"] if routes == "ecmp" or (noticed and routes == "metric") else [], **more,
            )
        )  # fmt: skip
    return complete(pd.DataFrame(rows))


def unsupported(part: str) -> pd.DataFrame:
    """Return the row of a kernel without GRE."""
    row = _row(part) | {
        "status": "unsupported",
        "reason": "this kernel has no gre: run with where='vm:debian'",
    }
    return complete(pd.DataFrame([row]))
