"""Tables of published figures in data/reference: of other machines, drawn beside one's own and never compared."""

import functools

import pandas as pd

from labkit.commands import new
from labkit.common import errors, run_folder
from labkit.common.errors import BadInput, Failed

CONTAINER_VS_VM, OVS_TEST_PLAN = "container_vs_vm.csv", "ovs_test_plan.csv"
THESIS_COUNT, THESIS_UPLINK = "virtual_tap_mirror_count.csv", "virtual_tap_gre_uplink.csv"
TESTS, COUNTERS = "trex_loadtests.csv", "trex_counters.csv"
LATENCY, HISTOGRAM = "trex_latency.csv", "trex_latency_histogram.csv"
# What is read of each table; other columns are for people. All but TEXTS and FLAG are numbers.
COLUMNS = {
    CONTAINER_VS_VM: "endpoint length_bytes duration_s sent_bps jitter_s lost_count sent_count ip_rcv_s",
    OVS_TEST_PLAN: "use_case pps bytes_per_s total_Mpps total_Gbps",
    THESIS_COUNT: "mirror_ports monitored bitrate_Mbps pps llc_loads llc_load_misses cycles instructions branches cpi",
    THESIS_UPLINK: "offered_Mbps sent_GB captured_GB",
    TESTS: "test profile expected_pps_per_direction measured_pps measured_L1_Mbps verdict",
    COUNTERS: "test sent_packets received_packets loss_limit cpu_share",
    LATENCY: "port mean_us max_us jitter_us",
    HISTOGRAM: "bucket_us port0_count port1_count",
}
TEXTS, FLAG = ("endpoint", "use_case", "test", "profile", "measured_pps", "verdict", "port"), "monitored"
THESIS_S = 60  # of each run of table 4.2
SHARES = ["source", "test", "pps", "line_pps", "share", "verdict"]
PUBLISHED_LINE_BPS = 1e9


def table(name: str) -> pd.DataFrame:
    """Read a table of the project's data/reference, or else of labkit's own.

    Raises Failed if neither has it, and BadInput if it was edited so that it is no such table.
    """
    own = run_folder.project_root() / "data/reference" / name
    place = own if own.exists() else _installed().get(f"data/reference/{name}")
    if place is None:
        raise Failed(f"this installation of labkit lacks data/reference/{name}: install it again")
    with errors.reading(str(place), BadInput):
        result = pd.read_csv(place, comment="#", dtype=dict.fromkeys(TEXTS, "str"))
    for column in COLUMNS[name].split():
        if column not in result:
            raise BadInput(f"{place} has no column {column}, which is read: put it back")
        given = result[column].dropna()
        numbers = given if column in (*TEXTS, FLAG) else pd.to_numeric(given, errors="coerce")
        if numbers.isna().any():
            raise BadInput(
                f"{place}: {column} is {given[numbers.isna()].iloc[0]!r}: write a number, or nothing"
            )
    return result


_installed = functools.cache(new.sources)


def container_vs_vm() -> pd.DataFrame:
    """Return the published measurements of an earlier report, one row per run.

    Columns: endpoint (container, guest), length_bytes (if iperf3 chose the length: the mean of the sent datagrams),
    received_bps, received_pps, sent_count, lost_count, jitter_s, ip_rcv_s, has_report. If has_report is False, the
    receiver's losses are unknown and received_* holds what was sent.
    """
    result = table(CONTAINER_VS_VM)
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
            own = some.set_index("mirror_ports")[column]
            if not own.index.is_unique:
                raise BadInput(
                    f"{THESIS_COUNT}: two lines have the same mirror_ports and monitored: keep one"
                )
            result[before + name] = result["mirrors"].map(own)
    return result


def thesis_uplink() -> pd.DataFrame:
    """Return table 4.2 of the thesis as rates in bit/s (offered, sent and captured), one row per offered rate.

    iperf3's GBytes have 2^30 bytes: only then does what was sent agree with what was offered. Wireshark's GBytes have
    10^9 bytes: otherwise more than 1 Gbit/s would have passed the NIC.
    """
    printed = table(THESIS_UPLINK)
    return pd.DataFrame(
        {
            "offered_bps": printed["offered_Mbps"] * 1e6,
            "sent_bps": printed["sent_GB"] * 8 * 2**30 / THESIS_S,
            "captured_bps": printed["captured_GB"] * 8e9 / THESIS_S,
        }
    )


@errors.reading(f"data/reference/{TESTS}", BadInput)
def trex_shares() -> pd.DataFrame:
    """Return the published load tests with SHARES: the rate in both directions together, and what the lines carry.

    For frames of several lengths the share is that of the bits on the line.
    """
    given = table(TESTS)
    measured = given["measured_pps"]  # as printed: some are of both directions together
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
    long = table(HISTOGRAM).rename(columns=names)
    long = long.melt("bucket_us", var_name="direction", value_name="count")
    return long.dropna().reset_index(drop=True)
