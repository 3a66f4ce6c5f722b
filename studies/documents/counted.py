"""Counts in rows of published runs, divided by those that a document prints or promises. They have no noise."""

from collections.abc import Iterator

import pandas as pd

from labkit.common import units

VXLAN_BYTES = 50  # Ethernet 14, VXLAN 8, UDP 8, IPv4 20 (RFC 7348)
GRE_BYTES = 24  # GRE 4, IPv4 20 (RFC 2784)
DEFAULT_TTL = 64  # of Linux (net.ipv4.ip_default_ttl)


def header_bytes(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the bytes that the kernel added for each tunnel, divided by those of the report's captures."""
    shown = {"vxlan": VXLAN_BYTES, "gre": GRE_BYTES, "vxlan_gre": VXLAN_BYTES + GRE_BYTES}
    for row in rows.drop_duplicates(["topology", "measured_bytes"]).to_dict("records"):
        if (name := row["topology"]) in shown:
            yield f"{name}: bytes added to a packet", row["measured_bytes"] / shown[name]


def captured_ratios(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the captured lengths of UDP's payload and of GRE, divided by those that the report's captures imply for
    an inner packet of this size: 106 and 138 bytes for one of 84, and 88 in GRE alone."""
    for what, own in rows.groupby("what", sort=False):
        deepest = max(own["layers"], key=len)
        inner = [layer["length_bytes"] for layer in deepest if layer["name"].startswith("ip")][-1]
        in_vxlan = any(layer["name"] == "vxlan" for layer in deepest)
        shown = {"udp": (106 - 84 + inner, 8), "gre": ((138 if in_vxlan else 88) - 84 + inner, 0)}
        for layer in deepest:
            if layer["name"] in shown:
                expected, header = shown[layer["name"]]
                ratio = (layer["length_bytes"] - header) / expected
                yield f"{what}: length of {layer['name']} around {inner} bytes", ratio


def ttls(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the TTL of the answers between bridges 1 and 3, divided by the 64 with which they are sent."""
    between = [{"cs1", "cs5"}, {"cs2", "cs5"}]
    for row in rows.to_dict("records"):
        if {row["source"], row["target"]} in between:
            yield f"{row['source']} to {row['target']}: TTL of the answers", row["ttl"] / DEFAULT_TTL


def joined(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the share of the pairs with a path whose requests were all answered by such a path, and the share of the
    others whose requests were not answered."""
    for has_path, own in rows.groupby(rows["reason"].isna(), sort=False):
        words = "with a path by the routing tables, all answered" if has_path else "without one, not answered"
        yield f"{len(own)} pairs {words}", float(own["as_expected"].astype(bool).mean())


def selected(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the copies of one of two flows divided by those of both, each per carried bit, divided by one half."""
    for _rate, own in rows.groupby("rate_bps", sort=False):
        bits = (own["throughput_bps"] * own["window_s"]).groupby(own["select"]).sum()
        copies = own["copies_count"].groupby(own["select"]).sum() / bits
        if not {"client0", "all"} <= set(copies.index):
            continue
        rate = units.si(own["rate_bps"].iloc[0], "bit/s")
        yield f"two flows of {rate}: copies of one", copies["client0"] / copies["all"] * 2
