"""Numbers that the five documents print, put together: what follows from them without any measurement.

Each function returns a quotient, or None if the file of published numbers is missing.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from studies import reference_tables

PREAMBLE_GAP_BYTES = 20  # of each frame on an Ethernet line (IEEE 802.3, clause 4)
FRAME_BYTES, TAG_BYTES = 64, 4
LINE_BPS = 1e9
TREX_CORE_BPS, TREX_CORE_PPS = 71e9, 53e6
TAGS_BPS = 3.389e6
STREAMS = {"of the generator": 32, "of the VMs": 8}  # of the test plan's two scripts
FLOWS_PER_STREAM, FLOWS_COUNT = 2000, 64_000
ATTACHED_COUNT, NAMED_COUNT = 4, 8  # ports of VMs in the test plan's script, and in its text
FLOW_BPS = 1e9  # of each flow that the thesis sent
SAMPLES_COUNT, MIRRORED_COUNT, SAMPLED_S = 30, 143_739, 30
OUTLIERS = 0.001  # of all probes: fewer do not count


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

    shares = reference_tables.trex_shares()
    own = shares[shares["test"].str.startswith(f"{test}:")]
    return float(own["share"].iloc[0]) if len(own) else None


def sent_share() -> float | None:
    """Return the frames of 64 bytes that the printed bit rate of the tagged link is, divided by what it carries."""
    table = reference_tables.table("trex_loadtests.csv")
    if table is None:
        return None
    sent_bps = float(table.loc[table["test"].eq("64b"), "measured_L1_Mbps"].iloc[0]) * 1e6
    whole_bytes = FRAME_BYTES + PREAMBLE_GAP_BYTES
    return sent_bps / LINE_BPS * (whole_bytes + TAG_BYTES) / whole_bytes


def loss(test: str) -> float | None:
    """Return the loss of a load test by its printed counters, divided by the limit of 0.01 %."""
    table = reference_tables.table("trex_counters.csv")
    if table is None:
        return None
    one = table[table["test"].eq(test)].iloc[0]
    return float((1 - one["received_packets"] / one["sent_packets"]) / one["loss_limit"])


def cpus_of_ip_rcv() -> float | None:
    """Return how many CPUs of a VM `ip_rcv` would take: its printed duration times the printed datagrams a second."""
    table = reference_tables.container_vs_vm()
    own = table[table["endpoint"].eq("guest")]
    return float((own["ip_rcv_s"] * own["received_pps"]).iloc[0]) if len(own) else None


@dataclass(frozen=True)
class Received:
    """What a course report's receiver got: in all, of how many datagrams a second, and of which length."""

    bps: float
    pps: float
    length_bytes: float


def received(endpoint: str) -> Received | None:
    """Return what the receiver of this kind got, with the datagrams that iperf3 chose."""
    table = reference_tables.container_vs_vm()
    own = table[table["endpoint"].eq(endpoint)]
    if not len(own):
        return None
    one = own[own["default"].astype(bool)].iloc[0]
    return Received(float(one["received_bps"]), float(one["received_pps"]), float(one["length_bytes"]))


def guest_share() -> float:
    """Return what a virtual machine received, divided by what a container received; not a number if it is missing."""
    guest, container = received("guest"), received("container")
    return guest.bps / container.bps if guest and container else math.nan


def arrived_ratio() -> float:
    """Return the share of its datagrams that a virtual machine received, divided by a container's; not a number if it
    is missing."""
    table = reference_tables.container_vs_vm()
    own = table[table["default"].astype(bool)].set_index("endpoint") if len(table) else table
    if not {"guest", "container"} <= set(own.index):
        return math.nan
    arrived = 1 - own["lost_count"] / own["sent_count"]
    return float(arrived["guest"] / arrived["container"])


def trex_core_bits() -> float | None:
    """Return the printed bit rate of a CPU core, divided by what follows from two full lines in both directions."""
    share = _core_share()
    return TREX_CORE_BPS / (4 * LINE_BPS / share) if share else None


def trex_core_frames() -> float | None:
    """Return the printed packet rate of a CPU core, divided by what follows from the frames of two full lines."""
    share = _core_share()
    frame_bits = 8 * (FRAME_BYTES + PREAMBLE_GAP_BYTES)
    return TREX_CORE_PPS / (2 * LINE_BPS / frame_bits / share) if share else None


def _core_share() -> float | None:
    """Return the printed share of a CPU core that the test of the loop took."""
    table = reference_tables.table("trex_counters.csv")
    return None if table is None else float(table.loc[table["test"].eq("baseline"), "cpu_share"].iloc[0])


def tags() -> float | None:
    """Return the printed rate of VLAN tags, divided by that of the printed packets."""
    table = reference_tables.table("trex_loadtests.csv")
    if table is None:
        return None
    pps = float(table.loc[table["test"].eq("astf"), "measured_pps"].iloc[0])
    return TAGS_BPS / (8 * TAG_BYTES * pps)


def within_limit(*tests: str) -> float | None:
    """Return the share of these load tests whose tool or counters do not say that the loss was above the limit."""
    table = reference_tables.table("trex_loadtests.csv")
    if table is None:
        return None
    words = table.set_index("test")["verdict"]
    lost = {name: loss(name) for name in tests if name in ("baseline", "astf")}
    passed = [(lost.get(name) or 0) < 1 and "too high" not in words[name] for name in tests]
    return sum(passed) / len(passed)


def histogram_mean_s(port: int) -> float | None:
    """Return the least mean that the printed histogram of latencies allows: that of its buckets' lower edges."""
    table = reference_tables.table("trex_latency_histogram.csv")
    if table is None:
        return None
    count = table[f"port{port}_count"].fillna(0)
    return float((table["bucket_us"] * count).sum() / count.sum() / 1e6)


def slow_probes() -> float | None:
    """Return the share of the probes in the printed histogram that took 10 ms or longer."""
    table = reference_tables.table("trex_latency_histogram.csv")
    if table is None:
        return None
    counts = table[["port0_count", "port1_count"]].fillna(0).sum(axis=1)
    return float(counts[table["bucket_us"].ge(10_000)].sum() / counts.sum())


def latency_ratio(port: int) -> float | None:
    """Return the printed mean latency, divided by the least that the printed histogram allows."""
    table, min_s = reference_tables.table("trex_loadtests.csv"), histogram_mean_s(port)
    if table is None or min_s is None:
        return None
    words = str(table.loc[table["test"].eq("astf"), "verdict"].iloc[0])
    means = re.search(r"avg latency (\d+)/(\d+) us", words)
    return float(means[port + 1]) / 1e6 / min_s if means else None


def outliers() -> float | None:
    """Return the share of the probes in the printed histogram that took 10 ms or longer, divided by OUTLIERS."""
    share = slow_probes()
    return None if share is None else share / OUTLIERS


def jitter_share(port: int) -> float | None:
    """Return the printed jitter, divided by the printed mean latency of this port."""
    table = reference_tables.table("trex_loadtests.csv")
    if table is None:
        return None
    words = str(table.loc[table["test"].eq("astf"), "verdict"].iloc[0])
    printed = [re.search(rf"{name} (\d+)/(\d+) us", words) for name in ("jitter", "avg latency")]
    numbers = [float(one[port + 1]) for one in printed if one]
    return numbers[0] / numbers[1] if len(numbers) == len(printed) else None


def left_out() -> float:
    """Return the share of the mirrored packets that the thesis' samples leave out."""
    return 1 - SAMPLES_COUNT / MIRRORED_COUNT


def attached_vms() -> float:
    """Return the ports of VMs that the test plan's script attaches, divided by those that its text names."""
    return ATTACHED_COUNT / NAMED_COUNT


def flows(script: str) -> float:
    """Return the flows that a script of the test plan makes, divided by those that its text names."""
    return STREAMS[script] * FLOWS_PER_STREAM / FLOWS_COUNT


def order_of_cases() -> float | None:
    """Return the printed rate of VM to network, divided by that of network to VM."""
    table = reference_tables.ovs_test_plan().set_index("use_case")
    return float(table["total_pps"]["vm_to_net"] / table["total_pps"]["net_to_vm"]) if len(table) else None


def sum_of_vms(column: str, total: str, factor: float) -> float | None:
    """Return the printed total of four VMs, divided by the sum of the printed number of one VM."""
    table = reference_tables.table(reference_tables.OVS_TEST_PLAN)
    if table is None:
        return None
    one = table[table["use_case"].eq("net-to-vm")].iloc[0]
    return float(one[total] * factor / (4 * one[column]))


def frames_bps() -> float | None:
    """Return the printed rate of VM to network in bit/s, divided by that of the printed number of frames."""
    table = reference_tables.table(reference_tables.OVS_TEST_PLAN)
    if table is None:
        return None
    one = table[table["use_case"].eq("vm-to-net")].iloc[0]
    return float(one["total_Gbps"] * 1e9 / (one["total_Mpps"] * 1e6 * 8 * FRAME_BYTES))


def mirror_throughput_ratio() -> float | None:
    """Return the printed throughput with eight mirrors and ifstat, divided by that without any."""
    rates = reference_tables.thesis_count().set_index("mirrors")["with ifstat"]
    return float(rates[8] / rates[0]) if len(rates) else None


def mirror_counter(column: str, ifstat: bool) -> float | None:
    """Return a printed counter with eight mirrors, divided by that with one, both with ifstat or both without."""
    table = reference_tables.table(reference_tables.THESIS_COUNT)
    if table is None:
        return None
    own = table[table["monitored"].astype("str").eq(str(ifstat))].set_index("mirror_ports")[column]
    return float(own[8] / own[1])


def copied_counters() -> list[str]:
    """Return the counters that the table prints alike for no mirror and for one without ifstat."""
    table = reference_tables.table(reference_tables.THESIS_COUNT)
    if table is None:
        return []
    none = table[table["mirror_ports"].eq(0)].iloc[0]
    one = table[table["mirror_ports"].eq(1) & table["monitored"].astype("str").eq("False")].iloc[0]
    names = table.columns[list(table.columns).index("llc_loads") :]
    return [name.replace("_", " ").replace("cpi", "CPI") for name in names if none[name] == one[name]]


def captured_shares() -> pd.DataFrame:
    """Return the rates below the line's, with the captured bytes divided by those that were sent (share)."""
    table = reference_tables.thesis_uplink()
    below = table[table["offered_bps"].lt(LINE_BPS)]
    return below.assign(share=below["captured_bps"] / below["sent_bps"])


def uplink_outlier() -> float | None:
    """Return the captured share that is farthest from the median of all shares, as a ratio to that median."""
    shares = captured_shares()["share"]
    if not len(shares):
        return None
    relative = shares / shares.median()
    logs = np.log(relative.to_numpy(float))
    return float(relative.iloc[int(np.abs(logs).argmax())])


def uplink_flow() -> float | None:
    """Return what the flow sent, divided by what was offered: the mean where more than the line was offered."""
    table = reference_tables.thesis_uplink()
    full = table[table["offered_bps"].gt(LINE_BPS)]
    return float((full["sent_bps"] / full["offered_bps"]).mean()) if len(full) else None


def uplink_plateau() -> float | None:
    """Return the rate that the monitor captured, divided by the NIC's rate: the mean where more than it was offered."""
    table = reference_tables.thesis_uplink()
    if not len(table):
        return None
    return float(table.loc[table["offered_bps"].gt(LINE_BPS), "captured_bps"].mean() / LINE_BPS)
