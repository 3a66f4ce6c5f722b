"""Numbers that the five documents print, put together: what follows from them without any measurement.

Each function returns a quotient.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.common.units import percent
from studies import reference_tables
from studies.reference_tables import COUNTERS, HISTOGRAM, LATENCY, TESTS, table

PREAMBLE_GAP_BYTES = 20  # of each frame on an Ethernet line (IEEE 802.3, clause 4)
FRAME_BYTES, TAG_BYTES = 64, 4
LINE_BPS = 1e9
TREX_CORE_BPS, TREX_CORE_PPS = 71e9, 53e6
TAGS_BPS = 3.389e6
OUTLIERS = 0.001  # of all probes: fewer do not count


def _of_test(test: str, column: str, file: str = TESTS) -> float:
    """Return the number in the line of a load test."""
    return float(table(file).set_index("test")[column][test])


def line_rate(test: str, tag_bytes: int = 0, passes: int = 1) -> float:
    """Return the document's frame rate of a load test, divided by that of the arithmetic of the line."""
    bits = 8 * (FRAME_BYTES + tag_bytes + PREAMBLE_GAP_BYTES)
    return _of_test(test, "expected_pps_per_direction") / (LINE_BPS / bits / passes)


def carried(test: str) -> float:
    """Return the rate that a load test carried, divided by what its line carries."""
    shares = reference_tables.trex_shares()
    return float(shares.loc[shares["test"].str.startswith(f"{test}:"), "share"].iloc[0])


def sent_share() -> float:
    """Return the frames of 64 bytes that the printed bit rate of the tagged link is, divided by what it carries."""
    sent_bps = _of_test("64b", "measured_L1_Mbps") * 1e6
    whole_bytes = FRAME_BYTES + PREAMBLE_GAP_BYTES
    return sent_bps / LINE_BPS * (whole_bytes + TAG_BYTES) / whole_bytes


def loss(test: str) -> float:
    """Return the loss of a load test by its printed counters, divided by the limit of 0.01 %."""
    columns = ("received_packets", "sent_packets", "loss_limit")
    received, sent, limit = (_of_test(test, column, COUNTERS) for column in columns)
    return (1 - received / sent) / limit


def cpus_of_ip_rcv() -> float:
    """Return how many CPUs of a VM `ip_rcv` would take: its printed duration times the printed datagrams a second."""
    printed = reference_tables.container_vs_vm()
    own = printed[printed["endpoint"].eq("guest")]
    return float((own["ip_rcv_s"] * own["received_pps"]).iloc[0])


def received(endpoint: str) -> Any:
    """Return what the receiver of this kind got, with the datagrams that iperf3 chose: `bps`, `pps` (datagrams a
    second), `length_bytes`, and the share that `arrived`."""
    printed = reference_tables.container_vs_vm()
    own = printed[printed["default"].astype(bool)].set_index("endpoint")
    own = own.assign(arrived=1 - own["lost_count"] / own["sent_count"])
    return own.rename(columns={"received_bps": "bps", "received_pps": "pps"}).loc[endpoint]


def guest_share() -> float:
    """Return what a virtual machine received, divided by what a container received."""
    return float(received("guest").bps / received("container").bps)


def arrived_ratio() -> float:
    """Return the share of its datagrams that a virtual machine received, divided by a container's."""
    return float(received("guest").arrived / received("container").arrived)


def trex_core_bits() -> float:
    """Return the printed bit rate of a CPU core, divided by what follows from two full lines in both directions."""
    return TREX_CORE_BPS / (4 * LINE_BPS / _core_share())


def trex_core_frames() -> float:
    """Return the printed packet rate of a CPU core, divided by what follows from the frames of two full lines."""
    frame_bits = 8 * (FRAME_BYTES + PREAMBLE_GAP_BYTES)
    return TREX_CORE_PPS / (2 * LINE_BPS / frame_bits / _core_share())


def _core_share() -> float:
    """Return the printed share of a CPU core that the test of the loop took."""
    return _of_test("baseline", "cpu_share", COUNTERS)


def tags() -> float:
    """Return the printed rate of VLAN tags, divided by that of the printed packets."""
    return TAGS_BPS / (8 * TAG_BYTES * _of_test("astf", "measured_pps"))


def within_limit(*tests: str) -> float:
    """Return the share of these load tests whose tool or counters do not say that the loss was above the limit."""
    words = table(TESTS).set_index("test")["verdict"]
    lost = {name: loss(name) for name in tests if name in ("baseline", "astf")}
    passed = [lost.get(name, 0) < 1 and "too high" not in words[name] for name in tests]
    return sum(passed) / len(passed)


def histogram_mean_s(port: int) -> float:
    """Return the least mean that the printed histogram of latencies allows: that of its buckets' lower edges."""
    printed = table(HISTOGRAM)
    count = printed[f"port{port}_count"].fillna(0)
    return float((printed["bucket_us"] * count).sum() / count.sum() / 1e6)


def slow_probes() -> float:
    """Return the share of the probes in the printed histogram that took 10 ms or longer."""
    printed = table(HISTOGRAM)
    counts = printed[["port0_count", "port1_count"]].fillna(0).sum(axis=1)
    return float(counts[printed["bucket_us"].ge(10_000)].sum() / counts.sum())


def _of_port(port: int) -> Any:
    """Return the printed statistics of the probes at a port."""
    return table(LATENCY).set_index("port").loc[f"port {port}"]


def latency_ratio(port: int) -> float:
    """Return the printed mean latency, divided by the least that the printed histogram allows."""
    return float(_of_port(port)["mean_us"]) / 1e6 / histogram_mean_s(port)


def outliers() -> float:
    """Return the share of the probes in the printed histogram that took 10 ms or longer, divided by OUTLIERS."""
    return slow_probes() / OUTLIERS


def jitter_share(port: int) -> float:
    """Return the printed jitter, divided by the printed mean latency of this port."""
    return float(_of_port(port)["jitter_us"] / _of_port(port)["mean_us"])


def quotient(factors: Sequence[float], divisor: float) -> float:
    """Return a product of printed numbers, divided by another one."""
    return math.prod(factors) / divisor


def share_left_out(kept: float, of: float) -> float:
    """Return the share of a printed number that is left out."""
    return 1 - kept / of


def order_of_cases() -> float:
    """Return the printed rate of VM to network, divided by that of network to VM."""
    rates = reference_tables.ovs_test_plan().set_index("use_case")["total_pps"]
    return float(rates["vm_to_net"] / rates["net_to_vm"])


def _read_out(case: str) -> Any:
    return table(reference_tables.OVS_TEST_PLAN).set_index("use_case").loc[case]


def sum_of_vms(column: str, total: str, factor: float) -> float:
    """Return the printed total of four VMs, divided by the sum of the printed number of one VM."""
    one = _read_out("net-to-vm")
    return float(one[total] * factor / (4 * one[column]))


def frames_bps() -> float:
    """Return the printed rate of VM to network in bit/s, divided by that of the printed number of frames."""
    one = _read_out("vm-to-net")
    return float(one["total_Gbps"] * 1e9 / (one["total_Mpps"] * 1e6 * 8 * FRAME_BYTES))


def mirror_throughput_ratio() -> float:
    """Return the printed throughput with eight mirrors and ifstat, divided by that without any."""
    rates = reference_tables.thesis_count().set_index("mirrors")["with ifstat"]
    return float(rates[8] / rates[0])


def mirror_counter(column: str, ifstat: bool) -> float:
    """Return a printed counter with eight mirrors, divided by that with one, both with ifstat or both without."""
    printed = table(reference_tables.THESIS_COUNT)
    own = printed[printed["monitored"].astype("str").eq(str(ifstat))].set_index("mirror_ports")[column]
    return float(own[8] / own[1])


def copied_counters() -> list[str]:
    """Return the counters that the table prints alike for no mirror and for one without ifstat."""
    printed = table(reference_tables.THESIS_COUNT)
    none = printed[printed["mirror_ports"].eq(0)].iloc[0]
    one = printed[printed["mirror_ports"].eq(1) & printed["monitored"].astype("str").eq("False")].iloc[0]
    names = printed.columns[list(printed.columns).index("llc_loads") :]
    return [name.replace("_", " ").replace("cpi", "CPI") for name in names if none[name] == one[name]]


def captured_shares() -> pd.DataFrame:
    """Return the rates below the line's, with the captured bytes divided by those that were sent (share)."""
    printed = reference_tables.thesis_uplink()
    below = printed[printed["offered_bps"].lt(LINE_BPS)]
    return below.assign(share=below["captured_bps"] / below["sent_bps"])


def uplink_outlier() -> float:
    """Return the captured share that is farthest from the median of all shares, as a ratio to that median."""
    shares = captured_shares()["share"]
    relative = shares / shares.median()
    logs = np.log(relative.to_numpy(float))
    return float(relative.iloc[int(np.abs(logs).argmax())])


def _above_line() -> pd.DataFrame:
    """Return the lines of the thesis in which more than its NIC's rate was offered."""
    printed = reference_tables.thesis_uplink()
    return printed[printed["offered_bps"].gt(LINE_BPS)]


def uplink_flow() -> float:
    """Return what the flow sent, divided by what was offered: the mean where more than the line was offered."""
    full = _above_line()
    return float((full["sent_bps"] / full["offered_bps"]).mean())


def uplink_plateau() -> float:
    """Return the rate that the monitor captured, divided by the NIC's rate: the mean where more than it was offered."""
    return float(_above_line()["captured_bps"].mean() / LINE_BPS)


@functools.cache
def numbers() -> dict[str, Any]:
    """Return the numbers and words that texts of claims name in braces."""
    container, guest, below = received("container"), received("guest"), captured_shares()
    shares = below["share"].sort_values()
    most = below.loc[shares.index[-1]]
    return {
        "container_kb": container.length_bytes / 1e3,
        "guest_kb": guest.length_bytes / 1e3,
        "container_gbps": container.bps / 1e9,
        "bits_ratio": container.bps / guest.bps,
        "datagrams_ratio": container.pps / guest.pps,
        "below_line_count": len(below),
        "least_share": shares.iloc[0],
        "usual_share": shares.iloc[-2],
        "most_share": shares.iloc[-1],
        "most_offered_mbps": most["offered_bps"] / 1e6,
        "most_captured_mbps": most["captured_bps"] / 1e6,
        "mirrored_kb": 1e9 / 8 * 30 / 143_739 / 1e3,
        "copied": ", ".join(copied_counters()),
        "above_line_percent": 100 * (sent_share() - 1),
        "least_us": " and ".join(f"{histogram_mean_s(port) * 1e6:,.0f}" for port in (0, 1)),
        "slow": percent(slow_probes()),
    }
