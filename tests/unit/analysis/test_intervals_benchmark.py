"""`python -m benchmarks intervals` counts alarms and coverage in the rows of a run, `gate` those of drawn trials."""

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy
from synthetic_rows import rows, save

from benchmarks import __main__ as benchmarks
from benchmarks import control, gate, intervals
from benchmarks.promise import NotMeasuredError, Promise

pytestmark = pytest.mark.long

BECAME = {"veth_bridge": 1.0, "veth_bridge (again)": 1.3, "macvlan_bridge": 0.9}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "DRAWS", 10)


def promises(folder: Path) -> dict[str, Promise]:
    return {one.what: one for one in intervals.evaluated(folder)}


def test_steady_series_keeps_every_promise(tmp_path: Path) -> None:
    for number, protocol in enumerate(("tcp", "udp")):
        some = rows(rounds=53, slices=4, placement="0,0", protocol=protocol, run=protocol, seed=number)
        save(tmp_path / protocol, some)
    result = promises(tmp_path)
    assert all(one.kept for one in result.values())
    assert result[
        "5 rounds contain the long-run ratio, macvlan_bridge, udp, 1 pair, MTU 1500"
    ].measured.endswith(" of 10")
    assert result["5 rounds contain the long-run ratio, all loads"].measured.endswith(" of 20")
    assert result["A/A alarms of 10 rounds, all loads"].measured.endswith(" of 10")
    assert len(result) == 8


def test_percentiles_of_requests_have_lines_of_their_own(tmp_path: Path) -> None:
    """Only the 99th percentile drifts."""
    some = rows(rounds=50, slices=0, whole=50, protocol="udp_rr")
    for row in some:
        p50_s = row["latency_p50_s"]
        slower = {"macvlan_bridge": 2.0}.get(row["arm"], 1.0) if row["round"] >= 25 else 1.0
        row |= {"latency_p90_s": 2 * p50_s, "latency_p99_s": 3 * p50_s * slower}
    kept = {
        what.split(", ")[-1]: one.kept for what, one in promises(save(tmp_path, some)).items() if "10" in what
    }
    assert kept["p90"], kept
    assert kept["p99"] is False


def test_series_that_drifts_breaks_the_promises(tmp_path: Path) -> None:
    some = rows(rounds=50, slices=4)
    later = rows(BECAME, rounds=50, slices=4)
    for row in later:
        row |= {"round": row["round"] + 50, "point": f"1-r{row['round'] + 50}"}
    result = promises(save(tmp_path / "run", [*some, *later]))
    assert [one.kept for one in result.values()] == [False] * 6
    alarms = int(result["A/A alarms of 5 rounds, all loads"].measured.split()[0])
    assert 10 <= alarms <= 13  # all of the second half
    assert result["10 rounds contain the long-run ratio, all loads"].measured == "0 of 10"


def test_what_cannot_be_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotMeasuredError, match=r"is not a run, or is incomplete"):
        promises(tmp_path)
    with pytest.raises(NotMeasuredError, match="has no comparison in 5 rounds"):
        promises(save(tmp_path / "run", rows(rounds=4, slices=4)))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "zoo", "--run", "x"])
    with pytest.raises(SystemExit, match="2"):
        benchmarks.main()


def test_chance_alone_breaks_no_promise() -> None:
    for hits in range(41):
        few, many = intervals.Count(hits, 40, 0.1), intervals.Count(40 - hits, 40, 0.1)
        p = float(scipy.stats.binomtest(hits, 40, 0.05, alternative="greater").pvalue)
        assert few.is_at_most(0.05) == many.is_at_least(0.95) == (p >= intervals.UNLIKELY)


@pytest.mark.parametrize(
    ("noise", "equal", "slower", "found"),
    [
        (0.0, "6 not worse, 0 worse, 0 cannot tell", "0 not worse, 4 worse, 0 cannot tell", "4 of 4"),
        (0.01, "6 not worse, 0 worse, 0 cannot tell", "0 not worse, 4 worse, 0 cannot tell", "4 of 4"),
        (2.0, "0 not worse, 0 worse, 6 cannot tell", "0 not worse, 0 worse, 4 cannot tell", "0 of 4"),
    ],
)
def test_drawn_trials_of_a_gate_count_what_they_are(
    noise: float, equal: str, slower: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rounds never alarm, a regression of 5 % is found each time, and too much noise leaves no answer.

    The build is 22 % faster in all recorded rounds, which is no difference of the trials.
    """
    setups = np.repeat(np.arange(12), 4)
    arm, again = np.random.default_rng(5).normal([[0.2], [0.0]], noise, (2, setups.size))
    monkeypatch.setattr(control, "recorded", lambda: [("tcp, 1 pair", arm, again, setups)])
    for name, value in {"EQUAL": 6, "SLOWER": 4, "ROUNDS": 20}.items():
        monkeypatch.setattr(gate, name, value)
    alarms, power = gate.promises(quick=True)
    assert (alarms.measured, alarms.kept) == ("0 of 6", True)
    assert (power.measured, power.kept) == (found, found == "4 of 4")
    assert alarms.more.startswith(f"{equal}; ")
    assert power.more.startswith(f"{slower}; ")
