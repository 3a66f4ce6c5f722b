"""How much of an arm's throughput remains under an observer, and which observers are reported as disturbing."""

import gzip
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.experiments import RunContext, profiled_runs, slices
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measuring_loop import Plan, Running
from labkit.measure.experiments.rows import Arm

ONE, OTHER = Arm("veth", "baseline"), Arm("veth_bridge", "variant")


def ran(observer: str | None, speed: float, status: str = "ok", **more: Any) -> dict[str, Any]:
    measured = {"throughput_bps": speed, "latency_p50_s": speed and 1 / speed}
    return {"observer": observer, "status": status, **measured, **more}


def report(protocol: str) -> list[dict[str, Any]]:
    result = [
        (ONE, ran("function_times", 50, doubts="loaded")),
        (ONE, ran(None, 100)),
        (OTHER, ran(None, 200)),
        (OTHER, ran("function_times", 180)),
        (OTHER, ran("perf_record", 20)),
        (OTHER, ran("counters", 0, "failed")),
        (OTHER, {"status": "unsupported"}),
    ]
    profiled_runs._report_overhead(DatapathParameters.of({"protocol": protocol}), result)
    return [metrics for _, metrics in result]


def test_overhead_of_observers() -> None:
    for protocol in ("udp", "ping"):
        rows = report(protocol)
        ratios = [None if (one := row.get("overhead_ratio")) is None else round(one, 9) for row in rows]
        assert ratios == [0.5, None, None, 0.9, 0.1, None, None]
    first, *others = report("udp")
    assert first["doubts"] == "loaded; disturbed: function_times reduced the speed to 50 %"
    assert not any("doubts" in row for row in others)
    # More than half of the requests were lost, so nobody knows the median.
    unknown = [(ONE, ran("perf_record", 50) | {"latency_p50_s": None}), (ONE, ran(None, 100))]
    profiled_runs._report_overhead(DatapathParameters.of({"protocol": "udp_rr"}), unknown)
    assert "overhead_ratio" not in unknown[0][1]
    result = [(ONE, ran("perf_record", 50)), (ONE, ran(None, 100, "failed"))]
    profiled_runs._report_overhead(DatapathParameters.of({"protocol": "udp"}), result)
    assert "overhead_ratio" not in result[0][1]


def local(arm: Arm, topology: Any) -> LocalArm:
    of_topology = {"topology": topology, "pairs": topology.pairs, "namespaces": topology.namespaces}
    return LocalArm(arm=arm, **of_topology, offloads={}, server_offloads={}, qdisc="noqueue")


def built(arm: Arm) -> LocalArm:
    end = SimpleNamespace(runtime=None)
    pair = SimpleNamespace(client=end, server=end)
    return local(arm, SimpleNamespace(pairs=[pair], ends=[end, end], namespaces=[]))


@pytest.mark.parametrize("slices", [0, 4])
def test_profiled_runs_of_a_round_have_the_same_placements(
    slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without slices has them, too: otherwise chance places the ends in each of two runs that are compared."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    parameters = DatapathParameters.of({"topology": "veth,veth_bridge", "slices": slices})

    def turns(seed: str) -> list[Any]:
        live = profiled_runs._with_moving_ends(parameters, [built(ONE), built(OTHER)], seed, None)
        assert all(one.placements is not None for one in live)
        runs = [list(islice(one.placements(), 8)) for one in (*live, *live) if one.placements]
        assert all(run == runs[0] for run in runs)
        return runs[0]

    everywhere = [[(client, server)] for client in (0, 1) for server in (0, 1)]
    assert sorted(turns("1 1-p0")[:4]) == everywhere == sorted(turns("1 1-p0")[4:])
    assert len({str(turns(f"1 1-p{number}")) for number in range(8)}) > 1


def test_settings_are_those_after_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody changes the queueing discipline and attaches a program while the load runs."""
    end = SimpleNamespace(namespace=SimpleNamespace(name="client0", fd=0), runtime=None)
    topology: Any = SimpleNamespace(
        pairs=[SimpleNamespace(client=end, server=end)],
        ends=[end, end],
        namespaces=[end.namespace],
        shown=None,
    )
    live = local(ONE, topology)
    space, machine = {"eth0 qdisc": "noqueue root"}, {"BPF program xdp other": "tag 1"}
    reads = []

    @contextmanager
    def of_one(*_: object) -> Iterator[tuple[list[LocalArm], list[Any]]]:
        yield [live], []

    def run(_point: object, _live: object, observer: str | None, _folder: Path, recording: Any) -> Any:
        if observer is None:
            with recording():
                pass
        space["eth0 qdisc"] = "tbf root"
        machine["BPF program kprobe own"] = "tag 2"
        return ONE, ran(None, 100)

    def programs() -> dict[str, str]:
        reads.append(dict(machine))
        machine.pop("BPF program kprobe own", None)  # of an observer: the kernel frees it a moment later
        return reads[-1]

    monkeypatch.setattr(profiled_runs.survey, "built", of_one)
    monkeypatch.setattr(profiled_runs.machine, "namespace_settings", lambda _fd: dict(space))
    monkeypatch.setattr(profiled_runs.machine, "bpf_settings", programs)
    monkeypatch.setattr(profiled_runs, "FREED_S", 0.0)
    parameters = DatapathParameters.of({"topology": "veth", "observe": "counters", "placement": "scheduler"})
    programs_there = {"client0": {"iperf3 nice": "0"}}
    monkeypatch.setattr(profiled_runs, "program_settings", lambda _inodes: programs_there)
    monkeypatch.setattr(profiled_runs, "measure_observed", run)
    running = Running(Plan(parameters, [], ""), RunContext("datapaths", tmp_path, 1, {}), [ONE], [])
    list(profiled_runs.Profile("1-p0", 1, 0, parameters).measure(running))
    assert len(running.rows) == 2
    [name] = {row["settings"] for row in running.rows}
    kept = json.loads(gzip.decompress((tmp_path / name).read_bytes()))
    assert kept == {
        "client0": {"eth0 qdisc": "tbf root", "iperf3 nice": "0"},
        "machine": {"BPF program xdp other": "tag 1"},
    }
    assert any("BPF program kprobe own" in one for one in reads)


def arms(pairs: int, runtime: object = None, **own: Any) -> Any:
    end = SimpleNamespace(runtime=runtime)
    pair = SimpleNamespace(client=end, server=end)
    topology = SimpleNamespace(pairs=[pair] * pairs, ends=[end, end] * pairs)
    parameters = DatapathParameters.of({"topology": "veth", **own})
    arm = SimpleNamespace(parameters=lambda _given: parameters)
    return [SimpleNamespace(arm=arm, topology=topology)] * 2


def placed(count: int, live: Any, **given: Any) -> list[Any]:
    parameters = DatapathParameters.of({"topology": "veth", **given})
    return list(islice(slices.placements(parameters, live, random.Random(1)), count))


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 2, 4, 6})


@pytest.mark.usefixtures("four_cpus")
def test_placements_repeat_only_after_all_were_used() -> None:
    given = [one for [one] in placed(32, arms(1))]
    everywhere = {(client, server) for client in (0, 2, 4, 6) for server in (0, 2, 4, 6)}
    assert set(given[:16]) == everywhere == set(given[16:])
    assert given[:16] != given[16:]


@pytest.mark.usefixtures("four_cpus")
def test_pairs_are_spread_over_the_cpus() -> None:
    """Each of eight clients and servers shares its CPU with as few others of its side as there can be."""
    for placement in placed(16, arms(8)):
        for side in zip(*placement, strict=True):
            assert sorted(side) == [0, 0, 2, 2, 4, 4, 6, 6]


def test_the_scheduler_places_what_cannot_be_placed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for live, given, cpus in (
        (arms(1), {"placement": "scheduler"}, 4),
        (arms(1, affinity="0,0"), {}, 4),
        (arms(1, streams=2), {}, 4),
        (arms(1, runtime=object()), {}, 4),
        (arms(1), {}, 1),  # one CPU leaves no choice
    ):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, cpus=cpus: set(range(cpus)))
        assert placed(2, live, **given) == [None, None]


def test_the_scheduler_places_profiled_runs_like_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    for given in ({"affinity": "0,0"}, {"protocol": "ping", "slices": 0}):
        parameters = DatapathParameters.of({"topology": "veth,veth_bridge", **given})
        live = profiled_runs._with_moving_ends(parameters, [built(ONE), built(OTHER)], "1 1-p0", None)
        assert [one.placements for one in live] == [None, None]
