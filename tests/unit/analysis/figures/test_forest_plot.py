"""The forest plot, read back from its traces, shapes and texts."""

import itertools
import math

import pytest
import synthetic_report

from labkit.analysis import figures


def test_forest_lines_and_bands() -> None:
    verdicts = synthetic_report.verdicts(synthetic_report.rows(variants=("macvlan_bridge", "vxlan")))
    figure = figures.forest(verdicts)
    assert len(figure.data) == 2 * 3 * 2
    assert len([shape for shape in figure.layout.shapes if shape.type == "rect"]) == 2 * 3
    assert all(axis.type == "log" and 1 in axis.tickvals for axis in figure.select_xaxes())
    words = [note.text for note in figure.layout.annotations]
    assert words.count("<b>faster</b>") == 6
    assert words.count("<b>slower</b>") == 6
    assert words.count("unsupported") == 2, "one line for all numbers of pairs, in each panel"
    assert "1.10 [1.06, 1.14]" in words
    labels = [label for axis in figure.select_yaxes() for label in axis.ticktext]
    assert labels[:4] == [
        "macvlan_bridge · 1 pair",
        "vxlan · 1 pair",
        "macvlan_bridge · 2 pairs",
        "vxlan · 2 pairs",
    ]
    assert "veth_bridge" in list(figure.select_xaxes())[-1].title.text
    # The first arm of a point has no ratio.
    lost = verdicts["topology"].eq("macvlan_bridge") & verdicts["pairs"].eq(2)
    verdicts.loc[lost, ["ratio", "low", "high", "control_low", "control_high"]] = math.nan
    assert len([shape for shape in figures.forest(verdicts).layout.shapes if shape.type == "rect"]) == 2 * 3


def test_intervals_and_labels_of_the_forest() -> None:
    verdicts = synthetic_report.verdicts(synthetic_report.rows(protocols=("tcp",), pairs=(1, 2)))
    measured = verdicts["pairs"].eq(2) & verdicts["ratio"].notna()
    verdicts.loc[measured, ["ratio", "low", "high"]] = [1.01, 0.97, 1.05]
    sure, unsure = figures.forest(verdicts).data
    assert not sure.marker.symbol.endswith("-open")
    assert unsure.marker.symbol.endswith("-open")
    verdicts = synthetic_report.verdicts(synthetic_report.rows(protocols=("tcp",)))
    verdicts.loc[verdicts.index[-1], "high"] = 1e30
    low, high = next(figures.forest(verdicts).select_xaxes()).range
    assert high - low < 1
    verdicts = synthetic_report.verdicts(synthetic_report.rows(protocols=("tcp", "ping"), pairs=(1,)))
    lines = synthetic_report.titles(figures.forest(verdicts))
    assert "right of 1 is faster" in lines[0]
    assert "left of 1 is faster" in lines[1]


@pytest.mark.parametrize("count", [3, 40])
def test_forest_line_height(count: int) -> None:
    verdicts = synthetic_report.verdicts(
        synthetic_report.rows(protocols=("tcp",), pairs=tuple(range(1, count + 1)))
    )
    figure = figures.forest(verdicts)
    plot = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    assert plot / (count + 1) == pytest.approx(22, abs=0.5)


def test_forest_texts_leave_room_for_the_plot() -> None:
    """In a figure 700 px wide at least 250 px are for the plot, whatever the arms and the verdicts are called."""
    verdicts = synthetic_report.verdicts(synthetic_report.rows(protocols=("tcp",), pairs=(1, 8)))
    usual = figures.forest(verdicts)
    assert usual.layout.margin.l + usual.layout.margin.r <= 450
    verdicts = verdicts[verdicts["ratio"].notna()].copy()
    long = "veth_bridge/container+no checksum offload at "
    verdicts["topology"] = long + verdicts["pairs"].astype("str")
    verdicts["word"] = "no difference beyond 5 %"
    figure = figures.forest(verdicts)
    assert figure.layout.margin.l + figure.layout.margin.r <= 450
    [axis] = figure.select_yaxes()
    assert axis.ticktext[0] == "veth_bridge/co…um offload at 1<br>1 pair", "the end tells arms apart"
    assert len(set(axis.ticktext)) == len(axis.ticktext)
    texts = [note.text for note in figure.layout.annotations]
    assert "1.10 [1.06, 1.14]<br>no difference beyond 5 %" in texts
    assert all(note.xshift in (None, 10) for note in figure.layout.annotations if "beyond" in note.text)


def test_ratio_ticks_are_apart() -> None:
    for low, high in ((0.9, 1.2), (0.01, 100.0), (0.95, 1.05), (0.4, 2.6)):
        at = figures.ratio_ticks(low, high)
        assert 1 in at
        whole = math.log(high / low)
        assert all(math.log(more / less) >= whole / 8 for less, more in itertools.pairwise(at))
