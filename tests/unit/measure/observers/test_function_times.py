"""function_times reads the kernel's trace pages, also of each guest by its kernel's own function names."""

import gzip
import io
import random
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SAMPLES, sample

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.endpoints import Kernel
from labkit.measure.experiments import DatapathParameters, RunContext, survey
from labkit.measure.observers.ftrace import (
    bpftrace_times,
    function_times,
    kernel_functions,
    ring_buffer,
    session,
)
from labkit.measure.observers.ftrace.function_times import FIELDS, Collected, collect
from labkit.measure.observers.ftrace.function_times import guest_function_times as watched
from labkit.measure.observers.ftrace.histogram import Distribution
from labkit.system import process

PINGS = 40  # in each sample, over loopback: a request and a reply each
FUNCTIONS = ("ip_rcv", "icmp_rcv")


def layout(version: str) -> ring_buffer.Layout:
    texts = (sample(f"funcgraph-{name}-{version}.txt") for name in ("header_page", "exit-format"))
    return ring_buffer.layout(*texts, FIELDS)


def content(version: str) -> bytes:
    return gzip.decompress((SAMPLES / f"funcgraph-pages-{version}.bin.gz").read_bytes())


@pytest.mark.parametrize("version", ["6.1", "6.12"])
def test_ring_buffer_pages(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_functions, "KALLSYMS", SAMPLES / f"funcgraph-kallsyms-{version}.txt")
    kernel_functions.addresses.cache_clear()
    known = kernel_functions.addresses(FUNCTIONS)
    kernel_functions.addresses.cache_clear()
    result, of = Collected(FUNCTIONS, Distribution), layout(version)
    whole = io.BytesIO(content(version))
    pages = iter(lambda: whole.read(of.page_bytes), b"")
    function_at = lambda address: kernel_functions.function_at(address, known)  # noqa: E731
    collect(result, "0", pages, of, function_at, lambda pid: str(bool(pid)))
    report = result.report()
    for name in FUNCTIONS:
        one = report[name]
        assert one["count"] == 2 * PINGS
        assert sum(count for _low, _high, count in one["histogram"]) == one["count"]
        assert 1e-7 < one["p50_s"] <= one["p90_s"] <= one["p99_s"] <= one["max_s"] < 1
        assert one["total_s"] == pytest.approx(one["mean_s"] * one["count"])
        assert (
            one["cpus"]["0"]["count"] == sum(part["count"] for part in one["processes"].values()) == 2 * PINGS
        )
    # each call of icmp_rcv is inside one of ip_rcv, and both times are inclusive
    assert report["ip_rcv"]["total_s"] > report["icmp_rcv"]["total_s"]


def test_damaged_pages_are_refused() -> None:
    of = layout("6.1")
    with pytest.raises(ValueError, match="cannot hold"):
        list(ring_buffer.events(content("6.1")[:64], of))
    # Whatever bytes a page contains, the reader finishes or rejects it.
    of, rng = layout("6.12"), random.Random(4)
    for _ in range(200):
        page = bytearray(rng.randbytes(of.page_bytes))
        page[of.commit_at : of.commit_at + 8] = (of.page_bytes - of.data_at).to_bytes(8, "little")
        with suppress(ValueError):
            list(ring_buffer.events(bytes(page), of))


def test_incomplete_or_reordered_format_is_refused() -> None:
    header, whole = (sample(f"funcgraph-{name}-6.1.txt") for name in ("header_page", "exit-format"))
    for text, fields, words in (
        ("name: other\nID: 4\n", FIELDS, "calltime"),
        (whole, tuple(reversed(FIELDS)), "unexpected field"),
    ):
        with pytest.raises(Failed, match=words):
            ring_buffer.layout(header, text, fields)


def test_quantiles() -> None:
    rng, result = random.Random(1), Distribution()
    times = [int(rng.lognormvariate(8, 1)) for _ in range(5000)]
    for time_ns in times:
        result.add(time_ns)
    for share in (0.5, 0.9, 0.99):
        exact = sorted(times)[int(share * len(times)) - 1]
        assert result.quantile_s(share) == pytest.approx(exact * 1e-9, rel=0.02)
    report = result.report()
    assert (report["count"], report["max_s"]) == (5000, pytest.approx(max(times) * 1e-9))
    assert all(low < high for low, high, _count in report["histogram"])


def test_names_and_addresses_of_functions() -> None:
    there = ["ip_rcv", "ip_rcv_core", "__netif_receive_skb_core.constprop.0", "tcp_ack.part.0", "do.isra.0"]
    result = kernel_functions.resolve(["ip_rcv", "__netif_receive_skb_core", "tcp_ack", "do"], there)
    assert result == {
        "ip_rcv": ["ip_rcv"],
        "__netif_receive_skb_core": ["__netif_receive_skb_core.constprop.0"],
        "tcp_ack": [],  # a compiler-generated part of a function is not that function
        "do": ["do.isra.0"],
    }
    known = {0x1000: "first", 0x1020: "second", 0x2000: "far"}
    assert [kernel_functions.function_at(at, known) for at in (0x1000, 0x1004, 0x1020, 0x1024, 0x2100, 0x10)] == [
        "first", "first", "second", "second", None, None,
    ]  # fmt: skip
    there = ["ip_rcv", "ip_rcv_core", "ip6_rcv_core", "udp_rcv", "br_handle_frame", "kmalloc"]
    refused = kernel_functions.refusal("Linux", ["br_handle_fram", "zzzzzz"], there, "a file")
    assert refused.startswith(
        "Linux cannot trace br_handle_fram (did you mean br_handle_frame?), zzzzzz; a file"
    )


def test_both_reasons_without_a_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*reason: str) -> None:
        raise Unsupported(*reason)

    monkeypatch.setattr(session, "check", lambda: without("no function_graph: boot another"))
    monkeypatch.setattr(bpftrace_times, "check", lambda: without("no bpftrace: install it"))
    function_times.check.cache_clear()
    with pytest.raises(Unsupported, match="boot another; BPF does not work either: no bpftrace: install it"):
        function_times.check()


def test_output_of_bpftrace() -> None:
    text = sample("bpftrace-0.17.0-times.jsonl")
    result = bpftrace_times.parse(text, ["ip_rcv", "__netif_receive_skb_core"])
    one = result["ip_rcv"]
    assert one["count"] == 1000
    assert (one["total_s"], one["max_s"]) == pytest.approx((0.029860145, 948523e-9))
    assert 16.384e-6 < one["p50_s"] < 32.767e-6 < one["p90_s"] < 65.536e-6
    assert one["processes"]["ping"]["count"] == one["cpus"]["0"]["count"] == 1000
    assert result["__netif_receive_skb_core"]["count"] == 1000
    # All idle tasks have pid 0.
    text = bpftrace_times.script({"ip_rcv": ["ip_rcv"]}, "lk-")
    assert text.count("@s0[tid, (tid == 0 ? cpu : 0)]") == 4
    assert "@s0[tid]" not in text
    with pytest.raises(Failed, match="invalid JSON"):
        bpftrace_times.parse('{"type": "map", "data"', ["ip_rcv"])


def test_bpftrace_error_is_in_words() -> None:
    """A sentence of a report has no warnings of bpftrace and no lines of its program."""
    warning = "stdin:1:1-14: WARNING: ip_rcv is not traceable\nkprobe:ip_rcv { exit(); }\n~~~~~~~~~~~~~\n"
    error = "Error attaching probe: 'kprobe:ip_rcv'"
    no_file = "create_probe_event: open(/sys/kernel/tracing/kprobe_events): No such file or directory\n"
    for lines, words in (("", f"bpftrace: {error}"), (no_file, "this kernel has no kprobe events")):
        said = f"{warning}{lines}ERROR: {error}\n"
        ended = process.Ended(["bpftrace"], 255, "Attaching 1 probe...\n", said, 0.0)
        assert bpftrace_times.reason(ended) == words


THERE = "ip_rcv\n__netif_receive_skb_core.constprop.0\nbr_handle_frame [bridge]\n"


class Folder(Kernel):
    """A folder that stands in for a guest's tracefs."""

    @property
    def prefix(self) -> list[str]:
        return []

    def __init__(self, path: Path, name: str, tracers: str = "function_graph nop") -> None:
        self.name, self._top = name, path
        path.mkdir(exist_ok=True)
        self.write("available_tracers", tracers.encode())
        self.write("available_filter_functions", THERE.encode())

    def read_bytes(self, path: str) -> bytes:
        return (self._top / path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        (self._top / path).write_bytes(content)

    def file(self, name: str, content: bytes) -> Any:
        raise NotImplementedError


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(function_times, "TRACEFS", str(tmp_path))
    return tmp_path


def test_guest_symbol_names(top: Path) -> None:
    guest: Any = Folder(top, "client0")
    with watched([guest], ("ip_rcv", "__netif_receive_skb_core")):
        armed = (top / "set_ftrace_filter").read_text()
        assert armed.split() == ["ip_rcv", "__netif_receive_skb_core.constprop.0"]
        assert (top / "current_tracer").read_text() == "function_graph"
    assert (top / "current_tracer").read_text() == "nop"


def test_failed_arming_disarms_other_guests(top: Path) -> None:
    class Bare(Folder):
        def read_bytes(self, path: str) -> bytes:
            return b"nop" if path.endswith("available_tracers") else super().read_bytes(path)

    guests: list[Any] = [Folder(top, "client0"), Bare(top, "client1")]
    with pytest.raises(Unsupported, match="client1"), watched(guests, ["ip_rcv"]):
        pass
    assert (top / "current_tracer").read_text() == "nop"


def test_untraceable_functions_are_refused_before_measuring(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest: Any = Folder(top, "client0")
    guest.report = {"guest_accelerator": "tcg", "guest_cpus_count": 1}
    end = SimpleNamespace(kernel=guest, runtime=guest)
    topology = SimpleNamespace(pairs=[SimpleNamespace(client=end, server=end)], ends=[end, end])
    monkeypatch.setattr(survey.topologies, "build", lambda *_, **__: nullcontext(topology))
    monkeypatch.setattr(survey.ping, "reachable", lambda *_: None)

    def tried(*functions: str) -> list[str]:
        parameters = DatapathParameters(
            endpoint=("guest",), observe=("guest_function_times",), functions=functions
        )
        return [arm.label for arm in survey.survey(parameters, RunContext("datapaths", top, 1, {}))[0]]

    assert tried("ip_rcv") == ["veth_bridge/guest"]
    with pytest.raises(BadInput, match=r"client0 cannot trace ip_recv \(did you mean ip_rcv"):
        tried("ip_rcv", "ip_recv")
    guest.report["guest_cpus_count"] = 2  # such a guest is not traced; everything else is measured
    assert tried("ip_recv") == ["veth_bridge/guest"]
    with pytest.raises(Unsupported, match="an emulated guest with several CPUs may panic"):
        function_times._guests(DatapathParameters(endpoint=("guest",)), topology)
    assert not (top / "current_tracer").exists()
