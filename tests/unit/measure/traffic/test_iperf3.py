"""iperf3's JSON, recorded from version 3.12 at both ends, becomes the columns of a row."""

import json
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import sample
from sandbox import shell_program

from labkit.common.errors import Failed, Unsupported
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import base, iperf3

Page = dict[str, Any]


def end(name: str, side: str) -> Page:
    page: Page = json.loads(sample(f"iperf3-3.12-{name}-{side}.json"))
    return page


def both(name: str) -> Page:
    return {side: end(name, side) for side in ("client", "server")}


def test_tcp_report() -> None:
    row = iperf3.metrics([both("tcp")], "tcp")
    server = end("tcp", "server")["end"]["sum_received"]
    assert row["iperf3_bps"] == pytest.approx(server["bytes"] * 8 / server["seconds"])
    assert row["retransmits_count"] == 2
    assert row["rtt_s"] == pytest.approx(1684e-6)
    assert row["sender_congestion"] == "bbr"
    # 12.48 % of 1.94 s at the client, 13.18 % at the server, from iperf3's getrusage(2)
    assert row["client_cpu_s"] == pytest.approx(0.2423, abs=1e-3)
    assert row["server_cpu_s"] == pytest.approx(0.2559, abs=1e-3)
    row = iperf3.metrics([both("tcp-2-streams")], "tcp")
    streams = end("tcp-2-streams", "client")["end"]["streams"]
    assert row["retransmits_count"] == 46 + 90
    assert row["rtt_s"] == pytest.approx((242e-6 + 391e-6) / 2)
    assert row["iperf3_bps"] == pytest.approx(
        sum(stream["receiver"]["bits_per_second"] for stream in streams), rel=0.01
    )


def test_udp_report() -> None:
    row = iperf3.metrics([both("udp")], "udp")
    received = end("udp", "server")["end"]["sum_received"]
    assert row["reported_received_count"] == received["bytes"] / 1472
    # The server reports 96395. With the received datagrams that is six more than were sent in the same seconds.
    assert row["lost_count"] == 151410 - row["reported_received_count"] == 96389
    assert row["sent_count"] == 151410
    assert row["iperf3_bps"] == pytest.approx(received["bytes"] * 8 / received["seconds"])
    assert row["jitter_s"] == pytest.approx(0.946844555e-3)
    assert row["out_of_order_count"] == 0
    assert row["length_bytes"] == 1472
    # With omitted seconds, the client of 3.12 reports more lost datagrams than it sent. The server's number is
    # right.
    client = end("udp", "client")["end"]["sum_received"]
    assert client["lost_packets"] > client["packets"]
    assert row["reported_received_count"] + row["lost_count"] == pytest.approx(row["sent_count"], rel=0.001)
    row = iperf3.metrics([both("udp-2-streams")], "udp")
    received = end("udp-2-streams", "server")["end"]["sum_received"]
    assert row["reported_received_count"] == received["bytes"] / 1472
    assert row["lost_count"] == 41678 + 41693
    assert row["sent_count"] == 2 * 73030


def test_flows_are_summed() -> None:
    for protocol, sums in (
        ("tcp", ["iperf3_bps", "sent_bps", "client_cpu_s", "server_cpu_s", "retransmits_count"]),
        ("udp", ["iperf3_bps", "sent_count", "reported_received_count", "lost_count"]),
    ):
        one, three = (iperf3.metrics([both(protocol)] * count, protocol) for count in (1, 3))
        for column in sums:
            assert three[column] == pytest.approx(3 * one[column]), column
        for column in {"rtt_s", "jitter_s"} & one.keys():
            assert three[column] == pytest.approx(one[column])


def test_received_and_lost_are_bounded_by_sent() -> None:
    """The server ends the warm-up a little late, so it has already counted some sent and lost datagrams."""
    for share in (0.05, 1):
        page = both("udp")
        for name in ("lost_packets", "packets"):
            more = round(share * page["client"]["end"]["sum_sent"]["packets"])
            page["server"]["end"]["sum_received"][name] += more
        row = iperf3.metrics([page], "udp")
        if share == 1:
            assert row["lost_count"] is None
        else:
            assert row["reported_received_count"] + row["lost_count"] == row["sent_count"]


def test_incomplete_json_is_one_sentence() -> None:
    pages: list[Page] = [
        {"client": {}, "server": {}},
        {"client": {"unreadable": "hello"}, "server": {}},
        {"client": {"end": []}, "server": {"end": []}},
        {"client": {"end": {"sum_received": 5}}, "server": {}},
    ]
    whole = both("tcp")
    for name in ("streams", "sum_sent", "sum_received", "cpu_utilization_percent"):
        client = {"end": whole["client"]["end"] | {name: [] if name == "streams" else None}}
        pages.append(whole | {"client": whole["client"] | client})
    for page, protocol in (*((page, "tcp") for page in pages), *((page, "udp") for page in pages[:4])):
        with pytest.raises(Failed, match="iperf3's JSON lacks what a row needs"):
            iperf3.metrics([page], protocol)


def test_client_arguments() -> None:
    for given, words in (
        ({}, "-t 5 -O 1"),
        ({"omit_s": 0, "streams": 4}, "-t 5 -P 4"),
        ({"direction": "both"}, "-t 5 --bidir"),
        ({"protocol": "udp", "length_bytes": 64}, "-u -b 0 -O 1 -l 64"),
        ({"protocol": "udp", "rate_bps": 2.5e6}, "-u -b 2500000 -l 1472"),
        (
            {"mss_bytes": 536, "congestion": "reno", "zerocopy": True, "affinity": "0,1",
             "socket": "nodelay=on sndbuf=8192 rcvbuf=8192"},
            "-M 536 -C reno -w 8192 -A 0,1 -Z -N",
        ),
    ):  # fmt: skip
        load = DatapathParameters(**given)
        line = " ".join(iperf3.IPERF3.client_argv(load, "fd00::2:1", 5201))
        assert line.startswith("iperf3 -J -c fd00::2:1 ")
        for word in words.split(" -"):
            assert word in line
        assert (
            ("-u" in line.split()) is ("-b" in line.split()) is (load.protocol == "udp")
        )  # no TCP here has a rate


@pytest.mark.parametrize("ends_after_s", [10.0, 0.25])
def test_flows_move_while_they_run(ends_after_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, moved = 0.0, list[tuple[float, Any]]()

    def wait(_clients: Any, until_s: float) -> list[int]:
        nonlocal now_s
        now_s = min(until_s, ends_after_s)
        return [1] if now_s < ends_after_s else []

    def bind(cpus: Any) -> None:
        moved.append((round(now_s, 6), cpus))
        if len(moved) == 2:
            raise Failed("the iperf3 client ended before it was bound")

    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(base.process, "wait", wait)
    flows = base.Flows(iperf3.IPERF3, [], None, DatapathParameters())
    monkeypatch.setattr(flows, "bind", bind)
    assert flows.wait(0.1)
    assert not moved
    flows.move_ends(cycle(["a", "b", "c"]))
    assert flows.wait(0.55) == (ends_after_s > 1)
    assert moved == [(0.1, "a"), (0.2, "b"), (0.3, "c"), (0.4, "a")][: 4 if ends_after_s > 1 else 2]


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("iperf 3.9\n", "iperf3 3.9 is too old: labkit reads the JSON of 3.12 and newer"),
        ("hello world\n", "iperf3 world is too old"),
        ("", "iperf3 .* is too old"),
        ("iperf 3.12 (cJSON 1.7.15)\n", None),
        ("iperf 4.0\n", None),
    ],
)
def test_versions(printed: str, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", shell_program(tmp_path, "iperf3", f"printf '%s' '{printed}'"))
    with pytest.raises(Unsupported, match=words) if words else nullcontext():
        assert iperf3.IPERF3.version() == printed.split()[1]
