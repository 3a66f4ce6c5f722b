"""Properties of every figure: its style comes from the template, and missing data is always visible."""

import functools
import json
import re
from typing import Any

import example_states
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
import pytest
import synthetic_report
from numpy.typing import NDArray
from synthetic_report import FIGURES, NO_IPVLAN

from labkit.analysis import figures, theme
from labkit.analysis.drawing import figure as drawing

XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear_rgb(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours (WCAG 2.2). Y is the relative luminance."""
    dark, light = sorted(float(XYZ[1] @ linear_rgb(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def test_colours_are_readable() -> None:
    for colour in theme.PALETTE:
        assert min(contrast(colour, "#ffffff"), contrast(colour, "#000000")) >= 3, colour
    text = pio.templates["labkit"].layout.font.color
    assert min(contrast(text, "#ffffff"), contrast(text, "#000000")) >= 4.5
    # JupyterLab's light and dark pages and their raised parts, VS Code's, and those of reports.
    for page in ("#ffffff", "#f5f5f5", "#f6f8fa"):
        assert contrast(theme.INK, page) >= 7
    for page in ("#111111", "#212121", "#1e1e1e", "#14171a"):
        assert contrast(theme.LIGHT_INK, page) >= 7
    figure = theme.on_paper(drawing.topology(example_states.bridged(1)))
    assert figure.layout.paper_bgcolor == "#ffffff"
    assert contrast(figure.layout.font.color, "#ffffff") >= 7


def test_figures_offer_no_upload() -> None:
    """plotly's own bar would have a button that uploads the figure's data to plotly's cloud."""
    theme.configure_renderers()  # as labkit.notebook does
    figure = go.Figure()
    for kind in ("plotly_mimetype", "jupyterlab", "vscode"):
        bundle = pio.renderers[kind].to_mimebundle(figure.to_dict())
        assert bundle["application/vnd.plotly.v1+json"]["config"]["showSendToCloud"] is False


def test_arm_styles_are_stable_and_apart() -> None:
    styles = {name: theme.arm_style(name) for name in theme.ARMS}
    styles |= {"the baseline": theme.BASELINE, "the control": theme.CONTROL}
    assert len({style.symbol for style in styles.values()}) == len(styles)
    assert theme.arm_style("macvlan_bridge") == theme.arm_style("macvlan_bridge", "variant")
    for name in ("anything", "veth_bridge"):
        assert theme.arm_style(name, "baseline") == theme.BASELINE
    assert theme.arm_style("veth_bridge (again)", "control") == theme.CONTROL
    assert theme.arm_style("a new one").symbol not in {style.symbol for style in theme.ARMS.values()}


ONE_PANEL: dict[str, Any] = {"protocols": ("tcp",), "pairs": (1,)}


@functools.cache
def whole(name: str) -> go.Figure:
    """Return a figure of two protocols and three numbers of pairs."""
    return FIGURES[name](synthetic_report.rows())


@pytest.mark.parametrize("name", FIGURES)
def test_template_styles(name: str) -> None:
    """Figures set no font, no background, and no colour beside the template, except those of the arms."""
    figure = whole(name)
    assert figure.layout.template.layout.colorway == theme.PALETTE
    drawn = json.loads(figure.to_json())
    del drawn["layout"]["template"]
    for path, value in synthetic_report.leaves(drawn):
        assert ".font" not in path, (path, value)
        if "color" in path or re.match(r"#[0-9a-fA-F]{3,8}$|rgba?\(", str(value)):
            assert value in {*theme.PALETTE, theme.GREY}, (path, value)


# --- no silent gaps ---


@pytest.mark.parametrize("name", FIGURES)
def test_gaps_are_reported(name: str) -> None:
    assert synthetic_report.notes(whole(name)).startswith(f"ipvlan_l2: {NO_IPVLAN}")
    rows = synthetic_report.rows()
    assert "nothing to draw" in synthetic_report.notes(FIGURES[name](rows.iloc[:0]))
    assert NO_IPVLAN in synthetic_report.notes(FIGURES[name](rows[rows["status"] != "ok"]))


def test_reasons_are_counted_merged_and_shortened() -> None:
    rows = synthetic_report.rows()
    bad = rows["protocol"].eq("udp") & rows["pairs"].eq(8) & rows["arm"].eq("macvlan_bridge")
    rows.loc[bad, ["status", "reason"]] = ["invalid", "generator-limited"]
    lines = synthetic_report.notes(FIGURES["throughput"](rows))
    counted = f"{bad.sum()} of {6 * bad.sum()} rows left out"
    assert f"macvlan_bridge (UDP; 8 pairs; {counted}): generator-limited" in lines
    rows = synthetic_report.rows(**ONE_PANEL)
    mine = rows["arm"].eq("macvlan_bridge")
    rows.loc[mine, "status"] = "invalid"
    rows.loc[mine, "reason"] = [f"ran for 0.{number} s" for number in range(mine.sum())]
    lines = synthetic_report.notes(FIGURES["throughput"](rows))
    assert lines == f"ipvlan_l2: {NO_IPVLAN} macvlan_bridge: for example, ran for 0.0 s"
    rows = synthetic_report.rows(**ONE_PANEL)
    other = rows[rows["arm"] == "ipvlan_l2"].assign(arm="ipvlan_l3", topology="ipvlan_l3")
    lines = synthetic_report.notes(FIGURES["throughput"](pd.concat([rows, other])))
    assert lines == f"ipvlan_l2, ipvlan_l3: {NO_IPVLAN}"
    rows = synthetic_report.rows(**ONE_PANEL)
    mine = rows["arm"].eq("macvlan_bridge")
    rows.loc[mine, "status"] = "failed"
    rows.loc[mine, "reason"] = [f"failed in way {'x' * number}" for number in range(mine.sum())]
    lines = synthetic_report.notes(FIGURES["throughput"](rows))
    assert lines.count("failed in way") == 3
    assert "more reasons of that kind" in lines


@pytest.mark.parametrize("name", FIGURES)
def test_titles_show_emulation_and_fit(name: str) -> None:
    for here, peer, is_said in (("kvm", None, False), ("tcg", None, True), ("none", "tcg", True)):
        rows = synthetic_report.rows(**ONE_PANEL, accelerator=here, peer_accelerator=peer)
        assert ("emulated CPU" in FIGURES[name](rows).layout.title.text) == is_said
    assert max(map(len, whole(name).layout.title.subtitle.text.split("<br>"))) <= 104


@pytest.mark.parametrize("name", FIGURES)
def test_external_text_is_not_markup(name: str) -> None:
    evil = "<script>alert(1)</script><a href='x'>y</a> & <b>z</b>"
    rows = synthetic_report.rows(**ONE_PANEL)
    rows.loc[rows["arm"] == "macvlan_bridge", ["arm", "topology"]] = evil
    rows["reason"] = rows["reason"].where(rows["status"] == "ok", evil)
    figure = FIGURES[name](rows)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in synthetic_report.notes(figure)
    for path, value in synthetic_report.leaves(json.loads(figure.to_json())):
        if not path.endswith("legendgroup"):  # not shown
            assert not re.search(r"<script|<a |<b>z", str(value)), path


# --- accessible to everyone, at any width ---

DEUTERANOPIA = np.array(  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)


def seen_lab(colour: str) -> NDArray[np.float64]:
    """Return a colour as deuteranopes see it, in CIELAB (D65)."""
    seen = np.clip(DEUTERANOPIA @ linear_rgb(colour), 0, 1)
    ratios = XYZ @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colour", theme.PALETTE)
def test_deuteranopes_tell_arms_from_the_baseline(colour: str) -> None:
    assert np.linalg.norm(seen_lab(colour) - seen_lab(theme.GREY)) > 25


def test_long_subtitle_gets_room() -> None:
    figure = go.Figure()
    theme.titled(figure, "title", "word " * 50 + "<br>second")
    assert figure.layout.title.subtitle.text.count("<br>") == 3
    assert figure.layout.margin.t == theme.MARGIN_TOP_PX + 2 * theme.NOTE_LINE_PX
    assert figure.layout.height == 450 + 2 * theme.NOTE_LINE_PX


def test_same_notes_are_shown_once() -> None:
    first, second, other = go.Figure(), go.Figure(), go.Figure()
    for figure, note in ((first, "no ipvlan"), (second, "no ipvlan"), (other, "no gre")):
        theme.add_notes(figure, [note], 50)
    height, seen = second.layout.height, set[str]()
    for figure in (first, second, other):
        theme.add_notes_once(figure, seen)
    assert [len(figure.layout.annotations) for figure in (first, second, other)] == [1, 0, 1]
    assert second.layout.height == height - theme.NOTE_LINE_PX


def test_drawing_page_follows_dark_mode() -> None:
    head = drawing.page(example_states.bridged(1)).partition("</head>")[0]
    assert "@media screen and (prefers-color-scheme:dark){body{background:#14171a}" in head


def test_titles_of_panels_fit_side_by_side() -> None:
    """A figure on a narrow page has 680 px, of which its legend takes some."""
    rows = pd.concat(
        synthetic_report.rows(protocols=("udp",), pairs=(1,), length_bytes=length)
        for length in (64, 512, 1472)
    )
    drawn = synthetic_report.titles(figures.throughput(rows, along="pairs"))
    assert [title.replace("<br>", " · ") for title in drawn] == [
        f"<b>UDP · MTU 1500 · {length} B each</b>" for length in (64, 512, 1472)
    ]
    lines = [line for title in drawn for line in re.sub("</?b>", "", title).split("<br>")]
    assert max(map(len, lines)) <= 60 // 3
