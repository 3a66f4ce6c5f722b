"""Sentences of claims that hold numbers which a document prints (claims.toml names them in braces)."""

from labkit.common.units import percent
from studies.documents import printed


def report_conditions() -> str:
    """Return what differs from the course report's measurement of containers and virtual machines."""
    container, guest = (printed.received(end).length_bytes / 1e3 for end in ("container", "guest"))
    return (
        f"In the report, containers received datagrams of {container:.1f} kB and virtual machines of {guest:.1f} kB."
        f" Here both sides of a ratio have datagrams of one size. {_REPORT_HOST} Here the guests are emulated."
    )


_REPORT_HOST = (
    "Prompts in part 1 of the report name its host as a machine of QEMU. If part 2 used the same host, its virtual"
    " machines are nested, and perhaps emulated."
)


def function_conditions() -> str:
    """Return what differs from the course report's traces of a function in a container and in a virtual machine."""
    return (
        f"{_REPORT_HOST} In the report, containers run on the host. Here they run in a lab VM, which is emulated as the"
        " guests are. Containers and guests were traced in different runs. One thread emulates both CPUs of the lab VM,"
        " and both of a guest that two ends share. Two guests have two threads. In a shared guest, no packet crosses a"
        " border between machines."
    )


def report_rates() -> str:
    """Return what the course report's receivers got, and by how much it differs."""
    container, guest = printed.received("container"), printed.received("guest")
    return (
        f"The report's client sent 4.66 Gbit/s. Without what was lost, {container.bps / 1e9:.2g} Gbit/s arrived,"
        f" which is {container.bps / guest.bps:.0f} times as much as in the virtual machine. In datagrams, which"
        f" differ in size, it is {container.pps / guest.pps:.0f} times as much."
    )


def captured_shares() -> str:
    """Return what the thesis captured below the rate of its link."""
    table = printed.captured_shares()
    shares = table["share"].sort_values()
    most = table.loc[shares.index[-1]]
    return (
        f"Of what was sent at the {len(table)} rates below 1 Gbit/s, the thesis captured {shares.iloc[0]:.2f} to"
        f" {shares.iloc[-2]:.2f} times as much, and {shares.iloc[-1]:.2f} times at"
        f" {most['offered_bps'] / 1e6:.0f} Mbit/s, where it captured {most['captured_bps'] / 1e6:.0f} Mbit/s. That"
        " one point is not smooth. iperf3's GBytes are taken as 2^30 bytes, and Wireshark's as 10^9."
    )


def captured_packets() -> str:
    """Return how large the packets are that the thesis counted at its mirror."""
    each = printed.FLOW_BPS / 8 * printed.SAMPLED_S / printed.MIRRORED_COUNT
    return (
        f"1 Gbit/s for {printed.SAMPLED_S} s in {printed.MIRRORED_COUNT:,} packets are {each / 1e3:.0f} kB each, so"
        " Wireshark counted bundles of segments (TSO), and not packets of a wire."
    )


def copied_counters() -> str:
    """Return which counters the thesis prints alike for two tests."""
    return f"Tests 8 and 9 have the same {', '.join(printed.copied_counters())}, so cells were copied."


def sent_frames() -> str:
    """Return by how much the load test sent more than its tagged link carries."""
    share = printed.sent_share()
    return (
        f"955.19 Mbit/s are the load in frames without a tag, 672 bits each. That is {100 * (share - 1):.2g} % more"
        " than a line carries with tags. So at least as much was lost, and the limit of 0.01 % was passed: it warned."
    )


def latencies() -> str:
    """Return what the printed histogram says about latencies."""
    means, slow = [printed.histogram_mean_s(port) for port in (0, 1)], printed.slow_probes()
    least = " and ".join(f"{mean * 1e6:,.0f}" for mean in means)
    return (
        f"The lower edges of the histogram's buckets alone have means of {least} µs. {percent(slow)} of the probes took"
        ' 10 ms or more, while the document says that the link "does not suffer from outliers". The histogram has more'
        " probes than the table of means, so it was read later. T-Rex's mean may be an exponentially weighted"
        " one: then the printed numbers are of the last seconds."
    )
