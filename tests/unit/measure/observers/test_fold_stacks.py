"""Folding of perf script text: agreement with inferno's own output, blocks of any size, and a full disk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import folding as benchmark
from labkit.common.errors import Failed
from labkit.measure.observers.perf import fold_stacks
from labkit.measure.observers.perf.fold_stacks import StackCounter

SAMPLES = Path(__file__).parents[3] / "samples"
TEXT = (SAMPLES / "perf-script-6.1.txt").read_bytes()
PERIODS = (50_000, 1_001_001)  # for two recordings; inferno counts nanoseconds of cpu-clock


def stacks(lines: bytes) -> dict[str, int]:
    return {
        stack: int(count)
        for stack, _, count in (line.rpartition(" ") for line in lines.decode().splitlines())
    }


def folded(*blocks: bytes) -> tuple[dict[str, int], StackCounter]:
    with StackCounter() as result:
        result.read(blocks)
        return stacks(b"".join(result.lines())), result


def test_stacks_agree_with_inferno() -> None:
    """Numbers 0 and -1 differ: in a PID namespace, perf gives every process outside of it a wrong name."""
    own, result = folded(TEXT)
    theirs = stacks((SAMPLES / "inferno-0.12.8-folded.txt").read_bytes())
    processes = ("iperf3;", "perf;", "perf-exec;")
    named = {stack: count for stack, count in own.items() if stack.startswith(processes)}
    assert named == {
        stack: next(count // period for period in PERIODS if count % period == 0)
        for stack, count in theirs.items()
        if stack.startswith(processes)
    }
    without = {stack.partition(";")[2] for stack in theirs}
    assert len(own) - len(named) > 5
    assert {stack.partition(";")[2] for stack in own} - without <= {
        stack.partition(";")[2] for stack in own if "do_exit_[k]" in stack  # its number was -1, and inferno skips it
    }  # fmt: skip
    assert (result.samples_count, result.lost_count, result.unread_count) == (sum(own.values()), 257, 0)
    assert result.samples_count == TEXT.count(b"cpu-clock:")


def test_idle_kernel_and_foreign_samples() -> None:
    own, result = folded(TEXT)
    assert {b"iperf3", b"swapper", b"kernel", b"elsewhere"} < set(result.processes)
    for stack in own:
        process, *frames = stack.split(";")
        assert ("cpu_startup_entry_[k]" in frames) == (process == "swapper")
        assert ("kthread_[k]" in frames) == (process == "kernel")


def test_samples_weighted_by_period() -> None:
    """perf script prints this for `-F comm,pid,tid,period,ip,sym,dso`. A rarely busy CPU has as many samples as
    others."""
    text = b"".join(
        b"sh %d/%d %10d \n\tffffffff817554ea %b ([kernel.kallsyms])\n\n" % (number, number, period, name)
        for number in range(1, 101)
        for name, period in ((b"busy", 3_000_000), (b"seldom", 1_000_000), (b"rare%d" % number, 10_000))
    )
    with StackCounter(weighted=True) as result:
        result.read([text])
        own = stacks(b"".join(result.lines()))
    assert sum(own.values()) == result.samples_count == 300
    assert (own["sh;busy_[k]"], own["sh;seldom_[k]"]) == (224, 75)
    assert sum(count for stack, count in own.items() if "rare" in stack) == 1
    with StackCounter(weighted=True) as result, pytest.raises(Failed, match="invalid literal"):
        result.read([b"sh 1/1 cycles:\n\tffffffff817554ea busy ([kernel.kallsyms])\n\n"])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_input_split_at_any_byte(size: int) -> None:
    blocks = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
    assert folded(*blocks)[0] == folded(TEXT)[0]


def test_spill_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, _ = folded(TEXT, TEXT)
    monkeypatch.setattr(fold_stacks, "MAX_BYTES", 500)
    monkeypatch.setattr(fold_stacks, "MAX_LINES", 10)
    with StackCounter() as result:
        result.read([TEXT[:9000], TEXT[9000:], TEXT])
        lines = b"".join(result.lines())
        assert len(result._spilled) > 1
    assert stacks(lines) == usual
    assert lines.splitlines() == sorted(lines.splitlines(), key=lambda line: line.rpartition(b" ")[0])


@pytest.mark.parametrize(
    ("symbol", "place", "name"),
    [
        (b"ip_rcv", b"[kernel.kallsyms]", b"ip_rcv_[k]"),
        (b"br_handle_frame", b"[bridge]", b"br_handle_frame_[k]"),
        (b"veth_xmit", b"/lib/modules/6.12/kernel/drivers/net/veth.ko.xz", b"veth_xmit_[k]"),
        (b"__vdso_clock_gettime", b"[vdso]", b"__vdso_clock_gettime"),
        (b"send", b"/usr/lib/x86_64-linux-gnu/libc.so.6", b"send"),
        (b"[unknown]", b"/usr/bin/perf", b"[perf]"),
        (b"[unknown]", b"[unknown]", b"[unknown]"),
        (b"[unknown]", b"/tmp/perf-341.map", b"[perf-PID.map]"),
        (b"f(int;char)", b"/usr/bin/a", b"f(int:char)"),
    ],
)
def test_function_names(symbol: bytes, place: bytes, name: bytes) -> None:
    assert fold_stacks.name_of(symbol, place) == name


def test_perf_output_variants() -> None:
    sample = b"Web Content  77/78 [001] 1.5: 1 cycles: \n\t  7f00 main+0x3 (/usr/bin/firefox (deleted))\n\n"
    assert folded(sample)[0] == {"Web_Content;main": 1}
    comm = b"iperf3     5 \n\tffffffff81 a ([kernel.kallsyms])\n\t 12 b (/bin/b)\n"
    assert folded(b"# captured on: today\n# ========\n", comm)[0] == {"iperf3;b;a_[k]": 1}


def test_invalid_profile() -> None:
    own, result = folded(b"what\nis this\n\niperf3 5 \n\tno frame\n\n")
    assert (own, result.unread_count) == ({"iperf3": 1}, 2)
    endless = (b"iperf3 5 \n" + b"\t12 a (b)\n" * 50_000 for _ in range(20))
    with pytest.raises(Failed, match="no sample ends within"):
        folded(*endless)


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "perf.txt"
    benchmark.text(path, 12)

    def often() -> Iterator[bytes]:
        for _ in range(2):
            with open(path, "rb") as file:
                yield from fold_stacks.blocks(file)

    tracemalloc.start()
    try:
        with StackCounter() as result:
            result.read(often())
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.samples_count > 20_000
    assert most < 12_000_000
