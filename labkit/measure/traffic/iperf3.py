"""iperf3 as a traffic generator: one process for each end of each pair.

It parses the JSON output of both ends (iperf3 3.12; `tests/samples` has real output).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.traffic import base
from labkit.measure.traffic.base import LARGEST_DATAGRAM, Capabilities, FlowGenerator, LoadParameters, Page
from labkit.system import process

OLDEST = (3, 12)  # the first version whose JSON of UDP runs has the sums of both ends
_BACK = "_bidir_reverse"  # ends the names of the sums of the second direction
_DIRECTIONS: dict[str, list[str]] = {"forward": [], "reverse": ["-R"], "both": ["--bidir"]}


def _socket_options(text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    from labkit.measure.traffic import socket_options  # few loads have any

    return socket_options.parse(text)


def metrics(pages: Sequence[Page], protocol: str) -> dict[str, Any]:
    """Compute the columns of a row: sums over all flows, from the JSON of both ends of each.

    iperf3_bps is the receivers' throughput, and forward_bps and reverse_bps are its directions. CPU seconds are
    iperf3's own utilisation over the run without the omitted part. Raises Failed if a page lacks a value that this
    version of iperf3 should write.
    """
    try:
        ends = [page["client"]["end"] for page in pages]
        sent = [end["sum_sent"] for end in ends]
        cpu = [end["cpu_utilization_percent"] for end in ends]
        turned = pages[0]["client"]["start"]["test_start"].get("reverse")
        sums = {"reverse" if turned else "forward": ""}
        sums |= {"reverse": _BACK} if f"sum_sent{_BACK}" in ends[0] else {}
        each = {
            f"{direction}_bps": sum(end[f"sum_received{sum_of}"]["bits_per_second"] for end in ends)
            for direction, sum_of in sums.items()
        }
        row: dict[str, Any] = {
            "iperf3_bps": sum(each.values()),
            **each,
            "sent_bps": sum(
                end[f"sum_sent{sum_of}"]["bits_per_second"] for end in ends for sum_of in sums.values()
            ),
            "client_cpu_s": sum(
                use["host_total"] / 100 * part["seconds"] for use, part in zip(cpu, sent, strict=True)
            ),
            "server_cpu_s": sum(
                use["remote_total"] / 100 * part["seconds"] for use, part in zip(cpu, sent, strict=True)
            ),
        }
        return row | (_udp(pages, sums) if protocol == "udp" else _tcp(pages, sums))
    except (LookupError, TypeError, ArithmeticError) as error:
        raise Failed(f"iperf3's JSON lacks what a row needs: {error}") from None


def _udp(pages: Sequence[Page], sums: Mapping[str, str]) -> dict[str, Any]:
    # Take the losses from the receivers: a sender's JSON (3.12) also counts losses in the omitted seconds.
    side = {"forward": "server", "reverse": "client"}
    ends = [(page[side[one]]["end"], sum_of) for page in pages for one, sum_of in sums.items()]
    received = [end[f"sum_received{sum_of}"] for end, sum_of in ends]
    arrived = sum(part["packets"] - part["lost_packets"] for part in received)
    sent = sum(
        page["client"]["end"][f"sum_sent{sum_of}"]["packets"] for page in pages for sum_of in sums.values()
    )
    lost = sum(part["lost_packets"] for part in received)
    streams = [stream["udp"] for end, _ in ends for stream in end["streams"]]
    streams = [one for one in streams if len(sums) == 1 or not one["sender"]]
    return {
        "sent_count": sent,
        "reported_received_count": arrived,
        "lost_count": _lost(
            sent, arrived, lost, base.skew(pages[0]["client"]["start"]["test_start"]["duration"])
        ),
        "out_of_order_count": sum(stream["out_of_order"] for stream in streams),
        "jitter_s": sum(part["jitter_ms"] for part in received) / len(received) / 1e3,
        "length_bytes": pages[0]["client"]["start"]["test_start"]["blksize"],
    }


def _lost(sent: int, arrived: int, lost: int, most: float) -> int | None:
    """Return how many of the sent datagrams were lost, or None if the counts differ by more than the share `most`.

    Each end leaves out the omitted seconds by its own clock, so a late server also counts losses in them.
    """
    if arrived + lost > sent * (1 + most):
        return None
    return max(0, min(lost, sent - arrived))


def _tcp(pages: Sequence[Page], sums: Mapping[str, str]) -> dict[str, Any]:
    ends = [page["client"]["end"] for page in pages]
    sides = [side.get("end", {}) for page in pages for side in page.values()]
    streams = [stream["sender"] for side in sides for stream in side.get("streams", [])]
    rtts = [one["mean_rtt"] for one in streams if one["sender"]]
    return {
        "retransmits_count": sum(
            end[f"sum_sent{sum_of}"]["retransmits"] for end in ends for sum_of in sums.values()
        ),
        "rtt_s": sum(rtts) / len(rtts) / 1e6,
        "sender_congestion": ends[0].get("sender_tcp_congestion"),
    }


class Iperf3(FlowGenerator):
    """iperf3 as a traffic generator."""

    name = "iperf3"
    # If the datagram or the server's answer gets lost, both ends wait for 30 s (iperf_udp_connect, 3.12).
    udp_start_can_be_lost = True
    capabilities = Capabilities(
        length_bytes={"tcp": (1, 1 << 20), "udp": (16, LARGEST_DATAGRAM)},
        metric="throughput_bps",
        paced=True,
        sliced=True,
        streams=128,
        turns=True,
        sockets=("sndbuf", "rcvbuf", "nodelay"),
    )
    reported_bps = "iperf3_bps"

    def version(self) -> str:
        """Return the version of iperf3. Raises Unsupported if it is missing, or too old for the JSON that rows need."""
        words = process.output(["iperf3", "--version"]).split()
        text = words[1] if len(words) > 1 else "?"
        numbers = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
        if numbers < OLDEST:
            raise Unsupported(
                f"iperf3 {text} is too old: labkit reads the JSON of 3.12 and newer; install a newer one"
            )
        return text

    def ignored_parameters(self, protocol: str) -> Sequence[str]:
        of_tcp = ("mss_bytes", "congestion", "zerocopy")
        return (*super().ignored_parameters(protocol), *(of_tcp if protocol == "udp" else ()))

    def check(self, parameters: LoadParameters) -> None:
        super().check(parameters)
        options = _socket_options(parameters.socket)
        if options.get("sndbuf") != options.get("rcvbuf"):
            raise BadInput("socket: iperf3 sets both buffers alike: give sndbuf and rcvbuf the same size")
        if options.get("nodelay") == 0:
            raise BadInput("socket=nodelay=off: iperf3 has it off anyway; leave it out")
        if parameters.direction == "both" and parameters.rate_bps is None and parameters.protocol == "udp":
            raise BadInput(
                "direction=both: iperf3 without a rate reads one datagram for ten that it sends: use rate_bps, slices=0"
            )

    def client_argv(
        self, parameters: LoadParameters, address: str, port: int, *, endless: bool = False
    ) -> list[str]:
        """Return the client's command line; an endless flow runs for a day. What is None is left to iperf3."""
        udp = parameters.protocol == "udp"
        seconds, omit_s = (86400, 0) if endless else (parameters.duration_s, parameters.omit_s)
        argv = ["iperf3", "-J", "-c", address, "-p", str(port), "-t", str(seconds)]
        argv += ["--connect-timeout", "3000", *_DIRECTIONS[parameters.direction], *["-u"] * udp]
        options = _socket_options(parameters.socket)
        for flag, value in (
            ("-b", int(parameters.rate_bps or 0) if udp or parameters.rate_bps is not None else None),
            ("-O", omit_s or None),
            ("-l", parameters.datagram_bytes if udp else parameters.length_bytes),
            ("-P", parameters.streams if parameters.streams > 1 else None),
            ("-M", parameters.mss_bytes),
            ("-C", parameters.congestion),
            ("-w", options.get("sndbuf")),  # the server's, too, and all receive buffers
            ("-A", parameters.affinity),  # "0,1": the client's CPU and the server's CPU
        ):
            if value is not None:
                argv += [flag, str(value)]
        return argv + ["-Z"] * parameters.zerocopy + ["-N"] * ("nodelay" in options)

    def server_argv(self, address: str, port: int) -> list[str]:
        """Return the server's command line.

        It binds the server to its address. Otherwise, with both ends in one namespace, the server would answer UDP from
        the client's address.
        """
        return ["iperf3", "-s", "-1", "-J", "-p", str(port), "-B", address]

    def page(self, text: str) -> Page:
        try:
            result = json.loads(text)
        except (ValueError, RecursionError):
            return {"unreadable": text[:2000]}
        return result if isinstance(result, dict) else {"unreadable": text[:2000]}

    def metrics(self, reports: Sequence[Page], protocol: str) -> dict[str, Any]:
        return metrics(reports, protocol)

    def block_bytes(self, parameters: LoadParameters) -> int:
        """Return the bytes of one write: for TCP without a length, iperf3's default of 128 KiB."""
        return (
            parameters.datagram_bytes if parameters.protocol == "udp" else parameters.length_bytes or 131072
        )


IPERF3 = Iperf3()
