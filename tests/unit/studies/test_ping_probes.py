"""Probes, read from recorded output of iputils 20221126, and the outage that they show."""

from itertools import pairwise
from pathlib import Path

import pytest

from labkit.common.errors import BadInput, Failed
from studies.overlay.ping_probes import Probe, answers, outage, probes

SAMPLES = Path(__file__).parents[2] / "samples"


def sample(name: str) -> str:
    return (SAMPLES / f"ping-20221126-{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "sent", "received", "duplicates", "errors", "ttl"),
    [
        ("lost", 20, 14, 0, 0, 63),
        ("unreachable", 4, 0, 0, 4, None),
        ("duplicates", 3, 3, 2, 0, 64),
        ("outage", 19, 13, 0, 0, 63),
        ("refused", 4, 0, 0, 2, None),
        ("answered-ipv6", 3, 3, 0, 0, 63),
    ],
)
def test_probe_results(
    name: str, sent: int, received: int, duplicates: int, errors: int, ttl: int | None
) -> None:
    result = answers(sample(name))
    report = (result.sent_count, result.received_count, result.duplicates_count, result.errors_count)
    assert report == (sent, received, duplicates, errors)
    assert result.ttl == ttl
    assert len(result.rtts_s) == received  # if a request is answered twice, the first answer counts


def test_row_columns() -> None:
    assert answers(sample("lost")).row() == {
        "sent_count": 20,
        "received_count": 14,
        "ttl": 63,
        "rtt_min_s": pytest.approx(9e-6),
        "rtt_p50_s": pytest.approx(33.5e-6),
        "rtt_max_s": pytest.approx(50e-6),
    }
    assert answers(sample("silent")).row()["rtt_p50_s"] is None
    with pytest.raises(Failed, match="printed no summary: ping: connect: Network is unreachable"):
        answers("ping: connect: Network is unreachable\n")


def test_probe_send_times() -> None:
    result = probes(sample("outage"))
    assert [one.number for one in result] == list(range(1, 20))
    assert [one.number for one in result if one.rtt_s is None] == list(range(7, 13))
    assert result[5].sent_s == pytest.approx(1795309841.755112 - 52e-6)
    assert result[7].sent_s == 1795309841.966626  # ping reports the error of probe 7 when it sends probe 8
    steps = [after.sent_s - before.sent_s for before, after in pairwise(result)]
    assert all(0.09 < step < 0.16 for step in steps), steps


def test_outages() -> None:
    result = outage(probes(sample("outage")))
    assert result.over
    assert result.since_s == pytest.approx(1795309841.755112)
    assert result.length_s == pytest.approx(1795309842.490757 - 1795309841.755112 - 0.104, abs=0.002)
    # Nothing was lost: the requests waited for a neighbour's address, and all were answered together a second late.
    result = probes(sample("late"))
    assert all(one.rtt_s is not None for one in result)
    assert result[9].sent_s == pytest.approx(1795310020.702661, abs=1e-3)
    assert outage(result).length_s == pytest.approx(1795310021.298784 - 1795310020.178778 - 0.104, abs=0.002)
    result = probes(sample("never-again"))
    assert len(result) == 11  # the last one has no line of its own but is counted
    assert result[-1].sent_s == 1795309844.250637
    gone = outage(result)
    assert not gone.over
    assert gone.length_s == pytest.approx(1795309844.250637 - 1795309843.514729, abs=0.002)
    result = probes(sample("refused"))
    assert [(one.number, one.rtt_s) for one in result] == [(1, None), (2, None), (3, None), (4, None)]
    assert result[0].sent_s == pytest.approx(result[1].sent_s - 0.104, abs=0.001)
    with pytest.raises(BadInput, match="none of these probes was answered"):
        outage(result)
    assert probes("PING 10.0.0.1 (10.0.0.1) 56(84) bytes of data.\n") == []
    assert outage([Probe(1, 5.0, 0.001)]) == (0.0, 5.001, False)


def regular(lost: set[int]) -> list[Probe]:
    return [Probe(number, number / 10, None if number in lost else 0.001) for number in range(20)]


@pytest.mark.parametrize(
    ("lost", "length_s", "over"),
    [(set(), 0.0, True), ({5}, 0.1, True), ({5, 6, 7, 12}, 0.3, True), ({4, 17, 18, 19}, 0.3, False)],
)
def test_longest_outage(lost: set[int], length_s: float, over: bool) -> None:
    result = outage(regular(lost))
    assert result.length_s == pytest.approx(length_s, abs=1e-3)
    assert result.over == over
