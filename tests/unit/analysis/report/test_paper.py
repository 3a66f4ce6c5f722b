"""Figures for papers: size, text, names and colours, as the file has them."""

import json
import re
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from synthetic_rows import rows

import labkit
from labkit.analysis import figures, load, verdicts
from labkit.common.errors import BadInput

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def forest() -> go.Figure:
    return figures.forest(verdicts.verdicts(load.complete(pd.DataFrame(rows()))))


def test_column_of_a_paper(forest: go.Figure, tmp_path: Path) -> None:
    before = json.loads(str(forest.to_json()))
    names, colors = {"veth": "M", "macvlan_bridge": "MACVLAN"}, {"macvlan_bridge": "#123456"}
    path = labkit.paper(
        forest, tmp_path / "ratios.svg", width_cm=8.5, font="Courier", names=names, colors=colors
    )
    text = path.read_text()
    [width] = re.findall(r'<svg class="main-svg" [^>]*width="([0-9.]+)"', text)[:1]
    assert float(width) == pytest.approx(8.5 / 2.54 * 96, abs=1)
    assert "MACVLAN · 1 pair" in text
    assert "macvlan_bridge" not in text
    assert "M_bridge" not in text  # the name of another arm is a part of it
    assert "Ratios to the baseline" not in text  # the caption says it
    assert "rgb(18, 52, 86)" in text
    assert "font-family: Courier" in text
    assert "#767676" not in re.sub(r"<path[^>]*>", "", text)  # texts are black
    assert json.loads(str(forest.to_json())) == before, "the figure stays as it is"


@pytest.mark.long
def test_pdf_has_the_width_in_points_and_a_title_on_request(
    forest: go.Figure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Ratios to the baseline" in labkit.paper(forest, tmp_path / "titled.svg", title=True).read_text()
    assert not capsys.readouterr().err
    tall = go.Figure(forest).update_layout(height=2000)
    content = labkit.paper(tall, tmp_path / "ratios.pdf", width_cm=17.5).read_bytes()
    [(width, height)] = re.findall(rb"/MediaBox \[0 0 ([0-9.]+) ([0-9.]+)\]", content)
    assert f"is {float(height) / 72 * 2.54:.1f} cm high, more than a page: draw" in capsys.readouterr().err
    assert float(width) == pytest.approx(17.5 / 2.54 * 72, abs=1)


def test_other_files_and_sizes_are_refused(forest: go.Figure, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"choose pdf, svg, png as the file's ending"):
        labkit.paper(forest, tmp_path / "ratios.doc")
    with pytest.raises(BadInput, match="width_cm is 2 to 100"):
        labkit.paper(forest, tmp_path / "ratios.pdf", width_cm=8500)


def test_names_and_colors_that_change_nothing_are_refused(forest: go.Figure, tmp_path: Path) -> None:
    for given, words in (
        ({"colors": {"macvlan_bridge": "nocolour"}}, "nocolour of macvlan_bridge is no CSS color"),
        ({"colors": {"macvlan_brigde": "red"}}, r"did you mean macvlan_bridge\?"),
        (
            {"names": {"macvlan_brigde": "M"}},
            r"no macvlan_brigde in the figure: .*did you mean macvlan_bridge\?",
        ),
    ):
        with pytest.raises(BadInput, match=words):
            labkit.paper(forest, tmp_path / "ratios.pdf", **given)


def test_a_name_that_begins_another_one_does_not_hide_it(tmp_path: Path) -> None:
    figure = go.Figure([go.Scatter(y=[1, 2], name=name) for name in ("veth", "veth+gro")])
    names = {"veth": "Cable", "veth+gro": "Merged"}
    text = labkit.paper(figure, tmp_path / "two.svg", names=names).read_text()
    assert "Cable" in text
    assert "Merged" in text
