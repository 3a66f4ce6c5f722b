"""Tables of published figures in data/reference: of other machines, drawn beside one's own and never compared."""

import functools

import pandas as pd

from labkit.commands import new
from labkit.common import run_folder
from labkit.common.errors import Failed

OVS_TEST_PLAN = "ovs_test_plan.csv"
THESIS_COUNT = "virtual_tap_mirror_count.csv"
THESIS_S = 60  # of each run of table 4.2
SHARES = ["source", "test", "pps", "line_pps", "share", "verdict"]
PUBLISHED_LINE_BPS = 1e9


def table(name: str) -> pd.DataFrame:
    """Read a table of the project's data/reference, or else of labkit's own. Raises Failed if neither has it."""
    own = run_folder.project_root() / "data/reference" / name
    place = own if own.exists() else _installed().get(f"data/reference/{name}")
    if place is None:
        raise Failed(f"this installation of labkit lacks data/reference/{name}: install it again")
    return pd.read_csv(place, comment="#")


_installed = functools.cache(new.sources)


def container_vs_vm() -> pd.DataFrame:
    """Return the published measurements of an earlier report, one row per run.

    Columns: endpoint (container, guest), length_bytes (if iperf3 chose the length: the mean of the sent datagrams),
    received_bps, received_pps, sent_count, lost_count, jitter_s, ip_rcv_s, has_report. If has_report is False, the
    receiver's losses are unknown and received_* holds what was sent.
    """
    result = table("container_vs_vm.csv")
    result["endpoint"] = result["endpoint"].replace("vm", "guest")
    sizes = result["sent_bps"] * result["duration_s"] / 8 / result["sent_count"]
    result["default"] = result["length_bytes"].isna()
    result["length_bytes"] = result["length_bytes"].fillna(sizes.round())
    result["has_report"] = result["sent_count"].notna()
    arrived = 1 - (result["lost_count"] / result["sent_count"]).fillna(0)
    result["received_bps"] = result["sent_bps"] * arrived
    result["received_pps"] = result["received_bps"] / 8 / result["length_bytes"]
    return result


def ovs_test_plan() -> pd.DataFrame:
    """Return the plan's published values: use_case, frame_bytes, total_pps, total_bps."""
    result = table(OVS_TEST_PLAN)
    return pd.DataFrame(
        {
            "use_case": result["use_case"].str.replace("-", "_"),
            "frame_bytes": (result["bytes_per_s"] / result["pps"]).round(),
            "total_pps": result["total_Mpps"] * 1e6,
            "total_bps": result["total_Gbps"] * 1e9,
        }
    )


def thesis_count() -> pd.DataFrame:
    """Return table 4.1 of the thesis, a row for each number of mirrors.

    `with ifstat` and `without ifstat` are Mbit/s. ifstat reads counters and no copy. `CPI …` are the cycles per
    instruction of ovs-vswitchd. Without mirrors there is one measurement, which stands in both columns.
    """
    printed = table(THESIS_COUNT)
    result = pd.DataFrame({"mirrors": sorted(printed["mirror_ports"].unique())})
    for column, before in (("bitrate_Mbps", ""), ("cpi", "CPI ")):
        for name, monitored in (("with ifstat", "True"), ("without ifstat", "False")):
            some = printed[printed["monitored"].isna() | printed["monitored"].astype("str").eq(monitored)]
            result[before + name] = result["mirrors"].map(some.set_index("mirror_ports")[column])
    return result


def thesis_uplink() -> pd.DataFrame:
    """Return table 4.2 of the thesis as rates in bit/s (offered, sent and captured), one row per offered rate.

    iperf3's GBytes have 2^30 bytes: only then does what was sent agree with what was offered. Wireshark's GBytes have
    10^9 bytes: otherwise more than 1 Gbit/s would have passed the NIC.
    """
    printed = table("virtual_tap_gre_uplink.csv")
    return pd.DataFrame(
        {
            "offered_bps": printed["offered_Mbps"] * 1e6,
            "sent_bps": printed["sent_GB"] * 8 * 2**30 / THESIS_S,
            "captured_bps": printed["captured_GB"] * 8e9 / THESIS_S,
        }
    )


def trex_shares() -> pd.DataFrame:
    """Return the published load tests with SHARES: the rate in both directions together, and what the lines carry.

    For frames of several lengths the share is that of the bits on the line.
    """
    given = table("trex_loadtests.csv")
    measured = given["measured_pps"].astype("str")  # as printed: some are of both directions together
    pps = measured.str.partition(" ")[0].astype(float)
    directions = measured.str.contains("both directions").map({True: 2.0, False: 1.0})
    line_share = given["measured_L1_Mbps"] * 1e6 / PUBLISHED_LINE_BPS
    line = (given["expected_pps_per_direction"] * directions).fillna(pps / line_share)
    return pd.DataFrame(
        {
            "source": "published",
            "test": given["test"] + ": " + given["profile"],
            "pps": pps,
            "line_pps": line,
            "share": pps / line,
            "verdict": given["verdict"],
        }
    )


def trex_histogram() -> pd.DataFrame:
    """Return the published latency histogram: bucket_us (lower edges), direction, count."""
    names = {"port0_count": "published, port 0", "port1_count": "published, port 1"}
    long = table("trex_latency_histogram.csv").rename(columns=names)
    long = long.melt("bucket_us", var_name="direction", value_name="count")
    return long.dropna().reset_index(drop=True)
