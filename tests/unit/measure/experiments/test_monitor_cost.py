"""The experiment `monitor_cost`: its parameters, its arms, what readers say when they end, and missing readers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.common.errors import Unsupported
from labkit.measure.experiments import RunContext
from labkit.measure.experiments.measuring_loop import Running
from labkit.measure.experiments.rows import Arm
from studies.monitor_cost import experiment, readers
from studies.monitor_cost.experiment import MonitorCost, wanted_count
from studies.monitor_cost.readers import ReaderCounts

TCPDUMP = """tcpdump: listening on eth0, link-type EN10MB (Ethernet), snapshot length 262144 bytes
200000 packets captured
200321 packets received by filter
321 packets dropped by kernel
"""
DUMPCAP = """Capturing on 'eth0'
File: /tmp/packets
Packets captured: 199000
Packets received/dropped on interface 'eth0': 199000/1000 (pcap:900/dumpcap:100/flushed:0/ps_ifdrop:0) (99.5%)
"""


def test_nobody_is_the_baseline_and_its_own_control() -> None:
    parameters = MonitorCost.of({"readers": "none,monitor,socket"})
    [point, *_] = experiment.plan(parameters, 0).points_of([])
    made = point.arms([Arm("veth", "baseline")])
    assert [(one.role, one.label) for one in made] == [
        ("baseline", "veth"),
        ("control", "veth (again)"),
        ("variant", "veth+monitor"),
        ("variant", "veth+socket"),
    ]
    assert "profile_rounds" not in parameters.asdict()


def test_last_words_of_readers() -> None:
    singular = "1 packet captured\n1 packet received by filter\n0 packets dropped by kernel\n"
    for name, text, counted in (
        ("tcpdump", TCPDUMP, ReaderCounts(200_000, 321)),
        ("tcpdump", singular, ReaderCounts(1, 0)),
        ("dumpcap", DUMPCAP, ReaderCounts(199_000, 1000)),
        ("tshark", "100 packets captured\n17 packets dropped from eth0\n", ReaderCounts(None, 17)),
        ("dumpcap", "something else\n", ReaderCounts(None, None)),
    ):
        assert readers.parse_counts(name, text) == counted


def test_frames_of_the_wanted_flow_follow_the_generators_turns() -> None:
    sent, flows, begun = [3, 0, 997, 1000, 1, 2500], 1000, 0
    for count in sent:
        expected = sum(number % flows == 0 for number in range(begun, begun + count))
        assert wanted_count(begun, count, flows) == expected
        begun += count


def test_missing_program_is_one_sentence() -> None:
    start = readers._program("labkit-no-such-reader", lambda _link, _file, _port: [])
    hop: Any = SimpleNamespace(namespace=None, interface="eth0")
    with pytest.raises(Unsupported, match="the program labkit-no-such-reader is not installed"):
        start(hop, 1024, "all").__enter__()


def test_missing_reader_is_an_unsupported_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def missing(*_: object) -> Iterator[None]:
        raise Unsupported("there is no tshark here")
        yield

    pair = SimpleNamespace(server=SimpleNamespace(namespace=None, interface="eth0"))
    topology: Any = SimpleNamespace(pairs=[pair])
    arm, nothing = Arm("veth", "variant"), cast(Any, None)
    live = experiment.WatchedArm(
        arm=arm, pairs=topology.pairs, namespaces=[], topology=topology, offloads={}, server_offloads={}, qdisc="",
        session=nothing,
    )  # fmt: skip

    @contextmanager
    def built(*_: object) -> Iterator[Any]:
        yield [live], []

    monkeypatch.setitem(readers.READERS, "none", missing)
    monkeypatch.setattr(experiment.Round, "built", built)
    plan = experiment.plan(MonitorCost.of({"loads": "10kpps", "rounds": "1"}), 0)
    running = Running(plan, RunContext("monitor_cost", tmp_path, 1, {}), [arm], [])
    list(plan.points_of([arm])[0].measure(running))
    [row] = running.rows
    assert (row["status"], row["reason"]) == ("unsupported", "there is no tshark here")
    assert (row["method"], row["load_pps"]) == ("whole", 10e3)
