"""The outage that probes show."""

import pytest

from studies.overlay.spine_failure import outage
from studies.probes import Probe


def regular(lost: set[int]) -> list[Probe]:
    return [Probe(number / 10, None if number in lost else 0.001) for number in range(20)]


def test_longest_outage() -> None:
    for lost, length_s, over in (
        (set(), 0.0, True), ({5}, 0.1, True), ({5, 6, 7, 12}, 0.3, True), ({4, 17, 18, 19}, 0.3, False),
    ):  # fmt: skip
        result = outage(regular(lost))
        assert result.length_s == pytest.approx(length_s, abs=1e-3)
        assert result.over == over


def test_outage_of_late_answers() -> None:
    """Requests wait for a neighbour's address, and all of them are answered together a second late."""
    late = [
        Probe(one.sent_s, 1.3 - one.sent_s if 0.25 < one.sent_s < 1.25 else 0.001) for one in regular(set())
    ]
    assert outage(late) == pytest.approx((1.3 - 0.201 - 0.1, 0.201, True))
    assert outage(late, since_s=1.35).length_s == pytest.approx(0, abs=1e-6)
    assert outage([Probe(5.0, 0.001)]) == (0.0, 5.001, False)
