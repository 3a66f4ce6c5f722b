"""What a whole run reports about flows that did not overlap, losses, and rates that were not reached."""

from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.experiments import whole_runs
from labkit.measure.experiments.datapaths_parameters import DatapathParameters

ROW = {"window_s": 0.2, "throughput_bps": 2e9, "iperf3_bps": 1e9, "received_bytes": 1}
WHERE = "98 % of these at client: IP to eth0 (qdisc tbf dropped)"


@pytest.mark.parametrize(
    ("pairs", "ends"), [(1, "make duration_s longer"), (2, "longer, or use fewer pairs")]
)
def test_remedy_for_flows_that_ran_apart(pairs: int, ends: str) -> None:
    generator: Any = SimpleNamespace(reported_bps="iperf3_bps")
    parameters = DatapathParameters(duration_s=1)
    result = whole_runs.FlowRow(parameters, generator, ROW, pairs).invalid()
    assert result.startswith("the flows ran together for only 0.20 of 1 s: ")
    assert result.endswith(ends)
    silent = ROW | {"received_bytes": 0, "iperf3_bps": 0}
    nothing = whole_runs.FlowRow(parameters, generator, silent, pairs, WHERE).invalid()
    assert nothing.startswith(
        "nothing arrived while all flows ran, in 0.20 of 1 s: of what was lost, 98 % at"
    )


@pytest.mark.parametrize(
    ("lost", "where", "doubts"),
    [
        (9, WHERE, []),
        (900, WHERE, [f"90 % of the datagrams were lost, {WHERE}"]),
        (900, None, ["90 % of the datagrams were lost"]),
    ],
)
def test_loss_is_a_doubt_with_its_place(lost: int, where: str | None, doubts: list[str]) -> None:
    parameters = DatapathParameters(protocol="udp", length_bytes=1000)
    generator: Any = SimpleNamespace(name="iperf3", reported_bps="iperf3_bps")
    row = dict.fromkeys(("throughput_bps", "iperf3_bps"), 1e9)
    row |= {"client_cpu_s": 0, "sent_count": 1000, "lost_count": lost}
    assert whole_runs.FlowRow(parameters, generator, row, 1, where).doubts() == doubts


@pytest.mark.parametrize(
    ("protocol", "client_cpu_s", "limited"), [("tcp", 0.3, False), ("tcp", 1.0, True), ("udp", 0.3, True)]
)
def test_a_rate_that_was_not_reached(protocol: str, client_cpu_s: float, limited: bool) -> None:
    """TCP sends no more than the path carries, so less is a result unless its sender is the limit."""
    parameters = DatapathParameters(protocol=protocol, rate_bps=5e9, duration_s=1, length_bytes=1000)
    generator: Any = SimpleNamespace(
        name="iperf3", reported_bps="iperf3_bps", block_bytes=lambda _parameters: 1000
    )
    row = {
        "window_s": 1.0, "throughput_bps": 1e9, "iperf3_bps": 1e9, "sent_bps": 1e9, "received_bytes": 1.25e8,
        "client_cpu_s": client_cpu_s, "lost_count": 0, "sent_count": 1000,
    }  # fmt: skip
    judged = whole_runs.FlowRow(parameters, generator, row, 1)
    invalid, doubts = judged.invalid(), judged.doubts()
    assert (invalid == "generator-limited: 1000 of the requested 5000 Mbit/s were sent") == limited
    sentence = "the path carried less than the requested rate: 1000 of the requested 5000 Mbit/s were sent"
    assert (sentence in doubts) == (not limited)
