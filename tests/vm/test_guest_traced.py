"""`guest_function_times` traces a guest's kernel as in an experiment, and its counts equal the packets that arrived."""

from pathlib import Path
from typing import Any

import pytest
from sandbox import printed

pytestmark = pytest.mark.needs("root", "qemu", "full kernel", "ping")


@pytest.fixture(scope="module")
def report(full_kernel: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    words = (f"{full_kernel},profile=tracing,boot_s=240", str(tmp_path_factory.mktemp("traced")))
    result: dict[str, Any] = printed(Path(__file__).with_name("trace_guest.py"), *words, timeout_s=600)
    return result


def test_every_packet_is_counted_once(report: dict[str, Any]) -> None:
    row = report["row"]
    assert row["status"] == "ok", row["reason"]
    assert (row["lost_samples_count"], row["observer"]) == (0, "guest_function_times")
    timed = row["observed"]["guest"]["functions"]
    # A received request and its answer. Between namespaces, packets come one by one, never in lists.
    assert timed["ip_rcv"]["count"] == report["received_count"] >= 2 * row["received_count"] > 0
    assert timed["ip_list_rcv"]["count"] == 0
    for parts in ("cpus", "processes"):
        assert sum(part["count"] for part in timed["ip_rcv"][parts].values()) == timed["ip_rcv"]["count"]
    assert {*timed["ip_rcv"]["cpus"]} <= {"shared:0", "shared:1"}
    assert 0 < timed["ip_rcv"]["p50_s"] <= timed["ip_rcv"]["p99_s"] <= timed["ip_rcv"]["max_s"] < 60


def test_guest_counters_show_the_path(report: dict[str, Any]) -> None:
    row, seen = report["counted"], report["counted"]["observed"]
    echoes = seen["namespaces"]["server0"]["mibs"]["Icmp"]["InEchos"]
    assert echoes >= row["received_count"] > 0
    [way] = seen["loss"]
    assert (way["pair"], way["unit"]) == ("client0 > server0", "frames")
    assert [hop["at"] for hop in way["hops"]] == ["client0:eth0 sends", "client0:eth0 to server0:eth0"]
    assert way["sent_count"] >= way["received_count"] >= echoes
    assert way["unexplained_count"] == 0
    assert any(cpu.get("NET_RX") for cpu in seen["guests"]["shared"]["cpus"].values())
    assert seen["not_read"] == "queueing disciplines in guests"


def test_tracer_is_off_afterwards(report: dict[str, Any]) -> None:
    state = report["state"]
    assert (state["current_tracer"], state["tracing_on"]) == ("nop\n", "0\n")
    assert "ip_rcv" not in state["set_ftrace_filter"]


def test_missing_functions_are_refused_early(report: dict[str, Any]) -> None:
    assert report["accepts"] == "nothing"
    lines = report["refused"]
    assert lines.startswith("the kernel of the guest shared cannot trace ip_recv (did you mean ")
    assert "ip_rcv" in lines.partition(")")[0]
