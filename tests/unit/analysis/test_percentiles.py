"""Verdicts about other percentiles of round-trip times than the median."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from synthetic_rows import FINISHED, rows, save

from labkit import cli
from labkit.analysis import compare_runs, history
from labkit.commands import terminal_tables
from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.notebook import Run

PINGS = 2500  # of a run of five seconds


def run(folder: Path, p99: float, lost: int = 0) -> Path:
    """Write a run whose variant has this ratio at p99 and none at p50. In `lost` rounds its slowest pings are lost."""
    some = rows(
        {"veth": 1.0, "veth (again)": 1.0, "veth_bridge": 1.0}, slices=0, whole=8, rounds=8, protocol="ping"
    )
    for row in some:
        tail = p99 if row["arm"] == "veth_bridge" else 1.0
        row |= {"latency_p99_s": row["latency_p50_s"] * 3 * tail, "latency_p999_s": 0.01}
        row |= {"received_count": PINGS, "throughput_bps": None}
        if row["arm"] == "veth_bridge" and row["round"] < lost:
            row |= {"latency_p99_s": None, "lost_count": 50}
    return save(folder, some)


Compared = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compared:
    """Return a function that compares two runs where the environment has a percentile."""

    def compare(old: Path, new: Path, *words: str, judged: str = "p50") -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setenv("LABKIT_PERCENTILE", judged)  # --percentile sets it, too
            code = cli.main(["compare", str(old), str(new), "--json", *words])
        return code, *capsys.readouterr()

    return compare


@pytest.mark.long
def test_delay_of_few_requests_is_at_p99_and_not_at_p50(tmp_path: Path, compared: Compared) -> None:
    """Few of 2,500 round trips are above p99.9, so that rests on too few."""
    old, new = run(tmp_path / "old", 1.0), run(tmp_path / "new", 1.5)
    at_p99 = json.loads(compared(old, new, "--percentile", "p99")[1])
    [tail] = [one for one in at_p99["lines"] if one["topology"] == "veth_bridge"]
    median = compare_runs.compare(old, new)[0].set_index("topology").loc["veth_bridge"]
    assert (median["metric"], str(median["word"]).startswith("no ")) == ("latency_p50_s", True)
    assert (tail["metric"], tail["word"]) == ("latency_p99_s", "slower")
    assert tail["relative_low"] < 1.5 < tail["relative_high"]
    few = "a run needs 5,000 round trips"
    assert not any("round trips were slower" in doubt for doubt in at_p99["doubts"])
    assert few in compared(old, new, judged="p999")[1]


def test_a_run_is_opened_with_another_percentile(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 1.5)
    every = (None, "p50", "p99", "p99.9", "p999")
    words = {chosen: Run(folder, chosen).verdicts["word"].iloc[0] for chosen in every}
    assert words.pop("p99") == "slower"
    assert {str(word)[:3] for word in words.values()} == {"no "}
    opened = Run(folder, "p99")
    assert repr(opened).endswith("percentile='p99')")
    assert "99th percentile" in opened.figures.forest.layout.meta["explained"]
    assert opened.figures.throughput.layout.yaxis.title.text == "round-trip time p99, µs"
    with pytest.raises(BadInput, match="these rows do not have it, choose p50, p99, p99\\.9"):
        Run(folder, "p90")
    carried = save(tmp_path / "tcp", rows(rounds=2))
    with pytest.raises(BadInput, match="tcp is not compared by round-trip times, so leave it out"):
        Run(carried, "p99")


@pytest.mark.parametrize(("lost", "word"), [(0, "faster"), (2, "faster"), (4, "no evidence")])
def test_an_arm_is_not_faster_because_it_lost_its_slowest_round_trips(
    tmp_path: Path, lost: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Run(run(tmp_path / "run", 0.5, lost), "p99")
    [line] = opened.verdicts.to_dict("records")
    assert line["word"] == word
    if lost:
        assert f"veth_bridge: in {lost} of 8 rows no time is known" in opened.doubts().data
    assert (f"in {lost} of 8 runs no time is known" in line["sentence"]) == (word == "no evidence")
    terminal_tables.show_rows(opened.rows)
    medians = capsys.readouterr().out.split("Medians")[1].splitlines()
    [shown] = [one for one in medians if one.startswith("veth_bridge ")]
    assert ("lost" in shown) == (lost == 4), "half of its rounds have no time"


def test_unknown_percentile_is_one_sentence(tmp_path: Path, compared: Compared) -> None:
    old, new = run(tmp_path / "old", 1.0), run(tmp_path / "new", 1.0)
    code, out, err = compared(old, new, judged="p98")
    assert (code, out) == (2, "")
    assert err.startswith("labkit: LABKIT_PERCENTILE=p98: choose p50, p90, p99, p99.9, max (did you mean ")


def test_a_run_remembers_its_percentile(
    tmp_path: Path, compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = run(tmp_path / "old", 1.0), run(tmp_path / "new", 1.5)
    run_folder.write_json(new / "run.json", run_folder.read_begun(new) | FINISHED | {"percentile": "p99"})
    assert Run(new).verdicts["word"].tolist() == ["slower"]
    assert str(Run(new, "p50").verdicts["word"].iloc[0]).startswith("no ")
    with pytest.raises(BadInput, match=r"they differ in metric: .*: choose one with --percentile"):
        compare_runs.compare(old, new)
    for chosen in ("p50", "p99"):
        assert compared(old, new, judged=chosen)[0] == 0
    [(path, _)] = history.add(new, tmp_path / "track")
    assert set(pd.read_parquet(path)["metric"]) == {"latency_p99_s"}
    monkeypatch.setenv("LABKIT_PERCENTILE", "p99")
    assert history.add(new, tmp_path / "track") == [(path, False)]
