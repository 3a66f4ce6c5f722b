"""Folding of perf script text: agreement with inferno's own output, blocks of any size, and a full disk."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SAMPLES

from benchmarks import folding as benchmark
from labkit.common.errors import Failed
from labkit.measure.observers.perf import fold_stacks
from labkit.measure.observers.perf.fold_stacks import StackCounter

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
    own, result = folded(TEXT)
    assert {b"iperf3", b"swapper", b"kernel", b"elsewhere"} < set(result.processes)
    for stack in own:
        process, *frames = stack.split(";")
        assert ("cpu_startup_entry_[k]" in frames) == (process == "swapper")
        assert ("kthread_[k]" in frames) == (process == "kernel")


def test_samples_weighted_by_period() -> None:
    """A rarely busy CPU has as many samples as others."""
    text = b"".join(
        b"sh %d/%d %10d \n\tffffffff817554ea %b+0x7a ([kernel.kallsyms])\n\n" % (number, number, period, name)
        for number in range(1, 101)
        for name, period in ((b"busy", 3_000_000), (b"seldom", 1_000_000), (b"rare%d" % number, 10_000))
    )
    with StackCounter(weighted=True) as result:
        result.read([text])
        own = stacks(b"".join(result.lines()))
    assert sum(own.values()) == result.samples_count == 300
    assert (own["sh;busy_[k]"], own["sh;seldom_[k]"]) == (224, 75)
    assert sum(count for stack, count in own.items() if "rare" in stack) == 1
    with StackCounter(weighted=True) as result:
        result.read([b"sh 1/1 \n\tffffffff817554ea busy+0x7a ([kernel.kallsyms])\n\n"])
    assert (result.samples_count, result.unread_count) == (0, 1)


@pytest.mark.parametrize("size", [1, 1000])
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


def test_function_names() -> None:
    for frame, name in (
        ("ffffffff81a00010 ip_rcv+0x10 ([kernel.kallsyms])", "ip_rcv_[k]"),
        ("ffffffffc0a00010 br_handle_frame+0x0 ([bridge])", "br_handle_frame_[k]"),
        ("ffffffffc0a00010 veth_xmit+0x1 (/lib/modules/6.12/kernel/drivers/net/veth.ko.xz)", "veth_xmit_[k]"),
        ("ffffffffc0a00010 bpf_prog_6deef7357e7b4530+0x1 (bpf_prog_6deef7357e7b4530)", "bpf_prog_6deef7357e7b4530_[k]"),
        ("7ffd1b3f2a10 __vdso_clock_gettime+0x1 ([vdso])", "__vdso_clock_gettime"),
        ("7f0000001170 java.lang.String.hashCode+0x4 ([JIT app cache])", "java.lang.String.hashCode"),
        ("1160 run+0x4 (/opt/app (deleted))", "run"),
        ("149d33 [unknown] (/usr/bin/perf)", "[perf]"),
        ("60778795cb260200 [unknown] ([unknown])", "[unknown]"),
        ("1180 [unknown] (/tmp/perf-341.map)", "[perf-PID.map]"),
        ("1110 f(int;char)+0x4 (/usr/bin/a)", "f(int:char)"),
        ("1110 function<void (int, char)>::operator()+0x10 (/opt/app)", "function<void (int, char)>::operator()"),
        ("1150 (anonymous namespace)::poll+0x4 (/opt/app)", "(anonymous namespace)::poll"),
    ):  # fmt: skip
        assert folded(f"app 700/700 \n\t{frame:>80}\n".encode())[0] == {f"app;{name}": 1}


def test_process_names() -> None:
    names = {"worker 0": "worker_0", "at 12/3 4": "at_12/3_4", "# 1": "#_1", "a;b": "a:b", "": "[unknown]"}
    for name, shown in names.items():
        frame = "\tffffffff81a00010 ip_rcv+0x10 ([kernel.kallsyms])\n\n"
        for weighted, first in ((False, "4242/4250 "), (True, "4242/4250     1001001 ")):
            text = f"{name} {first}\n{frame}{name} PERF_RECORD_LOST lost 9\n{name} {first}\n{frame}"
            with StackCounter(weighted) as result:
                result.read([text.encode()])
                assert stacks(b"".join(result.lines())) == {f"{shown};ip_rcv_[k]": 2}
            assert (result.lost_count, result.unread_count) == (9, 0)
        by_default = f"{name} 4242 [001] 15250.702666:      50000 cpu-clock:ppp: \n{frame}"
        assert folded(by_default.encode())[0] == {f"{shown};ip_rcv_[k]": 1}


def test_invalid_profile() -> None:
    own, result = folded(b"what\nis this\n\niperf3 5/5 \n\tno frame\n\n")
    assert (own, result.unread_count) == ({"iperf3": 1}, 2)
    endless = (b"iperf3 5/5 \n" + b"\t12 a+0x1 (b)\n" * 50_000 for _ in range(20))
    with pytest.raises(Failed, match="no sample ends within"):
        folded(*endless)


@pytest.mark.long
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
