"""A run shows the figures and the findings of its experiment, and no chart pools rows of two goals."""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import synthetic_rows
from conftest import ROOT

from labkit.analysis import figures, run_figures
from labkit.common import extensions
from labkit.measure import experiments
from labkit.notebook import Run

SENT = {
    "experiment": "throughput",
    "protocol": "udp",
    "frame": "64",
    "frame_bytes": 64.0,
    "flows_count": 1000,
}
# Figures that need more than the rows of a run
APART = {"function_times", "functions", "kernels", "over_time"}  # the last is what studies draw theirs with
OF_EXPERIMENTS = run_figures.BY_EXPERIMENT | extensions.load_all("labkit.figures", dict, ())


def searches() -> list[dict[str, Any]]:
    """Return three searches of two goals for each of three arms, each with a trial."""
    goals = [
        row | {"part": "cost", "method": "search", "loss_goal_ratio": goal, "trials_count": 50, "repeated_count": 0,
               "throughput_pps": row["throughput_bps"] / 512, "exceed_ratio": 0.5}
        for goal in (0.0, 0.005)
        for row in synthetic_rows.rows(rounds=3, slices=1, **SENT)
    ]  # fmt: skip
    trials = [
        row | {"part": "trials", "method": "trial", "phase": "search", "loss_goal_ratio": None, "loss_ratio": 0.1,
               "offered_pps": 1.1 * row["throughput_pps"]}
        for row in goals
    ]  # fmt: skip
    return goals + trials


def test_a_search_shows_its_curve_and_its_rates(tmp_path: Path) -> None:
    searched = Run(synthetic_rows.save(tmp_path / "run", searches(), experiment="throughput"))
    assert list(searched.figures)[:4] == ["load_loss", "forest", "throughput", "slices"]
    assert searched.figures.throughput.layout.xaxis.ticktext == ("NDR", "PDR 0.5 %")
    assert searched.figures.load_loss.data
    text = searched._repr_mimebundle_()["text/markdown"]
    assert "- macvlan_bridge, frames 64, 1000 flows: NDR 23" in text
    assert "PDR 0.5 %" in text
    assert text.index("NDR") < text.index("faster"), "findings stand before verdicts"


def test_tcp_and_ping_share_a_run(tmp_path: Path) -> None:
    """The generator differs, but each protocol has its own panel."""
    rows = [
        *synthetic_rows.rows(protocol="tcp", generator="iperf3"),
        *synthetic_rows.rows(protocol="ping", generator="ping"),
    ]
    assert "throughput" in Run(synthetic_rows.save(tmp_path / "run", rows)).figures


@pytest.mark.parametrize("experiment", ["datapaths", "latency_under_load"])
def test_pings_have_the_distribution_of_their_times(experiment: str, tmp_path: Path) -> None:
    """Those of labkit, unless the experiment draws its own under these names. Older rows have no times."""
    made = synthetic_rows.rows(
        slices=0, whole=1, protocol="ping", generator="ping", experiment=experiment, part="cost"
    )
    old = Run(synthetic_rows.save(tmp_path / "old", made, experiment=experiment)).figures
    timed = [row | {"latency_histogram": {"20000": 9}, "received_count": 9, "lost_count": 0} for row in made]
    new = Run(synthetic_rows.save(tmp_path / "new", timed, experiment=experiment)).figures
    for name in ("latency_cdf", "latency_box"):
        own = OF_EXPERIMENTS.get(experiment, {})
        assert (name in [*old]) == (name in own)
        assert bool(new[name].data) != (name in own), "these rows have no course, which the experiment draws"


def test_every_figure_of_a_table_belongs_to_a_run() -> None:
    """A figure that no experiment lists cannot be reached from a run."""
    sources = [Path(run_figures.__file__), *(ROOT / "studies").rglob("finding.py")]
    source = "".join(path.read_text() for path in sources)
    assert [name for name in figures.__all__ if name not in APART and f"figures.{name}(" not in source
            and f"figures.{name})" not in source] == []  # fmt: skip
    assert OF_EXPERIMENTS.keys() <= set(experiments.TABLE)


@pytest.mark.parametrize("experiment", OF_EXPERIMENTS)
def test_a_run_where_nothing_succeeded_has_figures(experiment: str, tmp_path: Path) -> None:
    """A display draws all of them, so none may fail for lack of rows."""
    failed = {"status": "failed", "reason": "why", "throughput_bps": None, "part": "cost"}
    rows = synthetic_rows.rows(rounds=1, slices=1, experiment=experiment, **failed)
    run = Run(synthetic_rows.save(tmp_path / "run", rows, experiment=experiment))
    for name in OF_EXPERIMENTS[experiment]:
        assert isinstance(run.figures[name], go.Figure), name
