"""Numbers that the five documents print, put together: what follows from them without any measurement.

Each function returns a quotient, or None if the file of published numbers is missing.
"""

from __future__ import annotations

from labkit.analysis import reference_tables
from labkit.analysis.endpoint_kinds import published as container_vs_vm
from labkit.analysis.findings import ovs_test_plan, virtual_tap

PREAMBLE_GAP_BYTES = 20  # of each frame on an Ethernet line (IEEE 802.3, clause 4)
FRAME_BYTES, TAG_BYTES = 64, 4
LINE_BPS = 1e9
VXLAN_BYTES = 50  # Ethernet 14, VXLAN 8, UDP 8, IPv4 20 (RFC 7348)
GRE_BYTES = 24  # GRE 4, IPv4 20 (RFC 2784)


def line_rate(test: str, tag_bytes: int = 0, passes: int = 1) -> float | None:
    """Return the document's frame rate of a load test, divided by that of the arithmetic of the line."""
    table = reference_tables.table("trex_loadtests.csv")
    if table is None:
        return None
    printed = float(table.loc[table["test"].eq(test), "expected_pps_per_direction"].iloc[0])
    bits = 8 * (FRAME_BYTES + tag_bytes + PREAMBLE_GAP_BYTES)
    return printed / (LINE_BPS / bits / passes)


def carried(test: str) -> float | None:
    """Return the rate that a load test carried, divided by what its line carries."""
    from labkit.analysis.findings import trex

    shares = trex.published_shares()
    own = shares[shares["test"].str.startswith(f"{test}:")]
    return float(own["share"].iloc[0]) if len(own) else None


def loss(test: str) -> float | None:
    """Return the loss of a load test by its printed counters, divided by the limit of 0.01 %."""
    table = reference_tables.table("trex_counters.csv")
    if table is None:
        return None
    one = table[table["test"].eq(test)].iloc[0]
    return float((1 - one["received_packets"] / one["sent_packets"]) / one["loss_limit"])


def cpus_of_ip_rcv() -> float | None:
    """Return how many CPUs of a VM `ip_rcv` would take: its printed duration times the printed datagrams a second."""
    table = container_vs_vm()
    own = table[table["endpoint"].eq("guest")]
    return float((own["ip_rcv_s"] * own["received_pps"]).iloc[0]) if len(own) else None


def order_of_cases() -> float | None:
    """Return the printed rate of VM to network, divided by that of network to VM."""
    table = ovs_test_plan.published().set_index("use_case")
    return float(table["total_pps"]["vm_to_net"] / table["total_pps"]["net_to_vm"]) if len(table) else None


def sum_of_vms(column: str, total: str, factor: float) -> float | None:
    """Return the printed total of four VMs, divided by the sum of the printed number of one VM."""
    table = reference_tables.table(ovs_test_plan.PUBLISHED)
    if table is None:
        return None
    one = table[table["use_case"].eq("net-to-vm")].iloc[0]
    return float(one[total] * factor / (4 * one[column]))


def mirror_throughput_ratio() -> float | None:
    """Return the printed throughput with eight mirrors that are read, divided by that without any."""
    read = virtual_tap.thesis_count().set_index("mirrors")["read"]
    return float(read[8] / read[0]) if len(read) else None


def uplink_plateau() -> float | None:
    """Return the rate that the monitor captured, divided by the NIC's rate: the mean where more than it was offered."""
    table = virtual_tap.thesis_uplink()
    if not len(table):
        return None
    return float(table.loc[table["offered_bps"].gt(LINE_BPS), "captured_bps"].mean() / LINE_BPS)
