"""What holds of every figure: its looks come from the template, and nothing that is missing is missing silently."""

from __future__ import annotations

import json
import re

import pandas as pd
import plotly.io as pio
import pytest
import synthetic_report
from synthetic_report import FIGURES, NO_IPVLAN

from labkit.analysis import theme


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_colour_contrast() -> None:
    for colour in theme.PALETTE:
        assert min(contrast(colour, "#ffffff"), contrast(colour, "#000000")) >= 3, colour
    text = pio.templates["labkit"].layout.font.color
    assert min(contrast(text, "#ffffff"), contrast(text, "#000000")) >= 4.5


def test_topologies_have_symbols() -> None:
    styles = {name: theme.arm_style(name) for name in theme._ARMS}
    styles |= {"the baseline": theme.BASELINE, "the control": theme.CONTROL}
    assert len({style.symbol for style in styles.values()}) == len(styles)


def test_arm_style_is_stable() -> None:
    assert theme.arm_style("macvlan_bridge") == theme.arm_style("macvlan_bridge", "variant")
    assert (
        theme.arm_style("anything", "baseline")
        == theme.arm_style("veth_bridge", "baseline")
        == theme.BASELINE
    )
    assert theme.arm_style("veth_bridge (again)", "control") == theme.CONTROL
    assert theme.arm_style("a new one") == theme.arm_style("a new one")
    assert theme.arm_style("a new one").symbol not in {style.symbol for style in theme._ARMS.values()}


@pytest.mark.parametrize("name", FIGURES)
def test_template_styles(name: str) -> None:
    """Beside the template there is no font and no background, and no colour but those of the arms."""
    figure = FIGURES[name](synthetic_report.rows())
    assert figure.layout.template.layout.colorway == theme.PALETTE
    drawn = json.loads(figure.to_json())
    del drawn["layout"]["template"]
    for path, value in synthetic_report.leaves(drawn):
        assert ".font" not in path, (path, value)
        if "color" in path or re.match(r"#[0-9a-fA-F]{3,8}$|rgba?\(", str(value)):
            assert value in {*theme.PALETTE, theme.GREY}, (path, value)


# --- no silent gaps ---


@pytest.mark.parametrize("name", FIGURES)
def test_unsupported_arms_are_reported(name: str) -> None:
    assert synthetic_report.notes(FIGURES[name](synthetic_report.rows())).startswith(
        f"ipvlan_l2: {NO_IPVLAN}"
    )


def test_omissions_are_counted() -> None:
    rows = synthetic_report.rows()
    bad = rows["protocol"].eq("udp") & rows["pairs"].eq(8) & rows["arm"].eq("macvlan_bridge")
    rows.loc[bad, ["status", "reason"]] = ["invalid", "generator-limited"]
    lines = synthetic_report.notes(FIGURES["throughput"](rows))
    counted = f"{bad.sum()} of {6 * bad.sum()} rows left out"
    assert f"macvlan_bridge (UDP; 8 pairs; {counted}): generator-limited" in lines


def test_reasons_differing_in_numbers_are_merged() -> None:
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(1,))
    mine = rows["arm"].eq("macvlan_bridge")
    rows.loc[mine, "status"] = "invalid"
    rows.loc[mine, "reason"] = [f"ran for 0.{number} s" for number in range(mine.sum())]
    lines = synthetic_report.notes(FIGURES["throughput"](rows))
    assert lines == f"ipvlan_l2: {NO_IPVLAN} macvlan_bridge: ran for 0.0 s (for example)"


def test_shared_reason_is_shown_once() -> None:
    rows = synthetic_report.rows()
    other = rows[rows["arm"] == "ipvlan_l2"].assign(arm="ipvlan_l3", topology="ipvlan_l3")
    assert (
        synthetic_report.notes(FIGURES["throughput"](pd.concat([rows, other])))
        == f"ipvlan_l2, ipvlan_l3: {NO_IPVLAN}"
    )


def test_many_reasons_are_shortened() -> None:
    rows = synthetic_report.rows()
    mine = rows["arm"].eq("macvlan_bridge")
    rows.loc[mine, "status"] = "failed"
    rows.loc[mine, "reason"] = [f"failed in way {'x' * number}" for number in range(mine.sum())]
    lines = synthetic_report.notes(FIGURES["throughput"](rows))
    assert lines.count("failed in way") == 3
    assert "more reasons of that kind" in lines


@pytest.mark.parametrize("name", FIGURES)
def test_empty_figure(name: str) -> None:
    rows = synthetic_report.rows()
    assert "nothing to draw" in synthetic_report.notes(FIGURES[name](rows.iloc[:0]))
    assert NO_IPVLAN in synthetic_report.notes(FIGURES[name](rows[rows["status"] != "ok"]))


@pytest.mark.parametrize("name", FIGURES)
def test_emulated_is_in_the_title(name: str) -> None:
    assert "emulated CPU" not in FIGURES[name](synthetic_report.rows(accelerator="kvm")).layout.title.text
    assert "emulated CPU" in FIGURES[name](synthetic_report.rows(accelerator="tcg")).layout.title.text
    either = synthetic_report.rows(accelerator="none", peer_accelerator="tcg")
    assert "emulated CPU" in FIGURES[name](either).layout.title.text


@pytest.mark.parametrize("name", FIGURES)
def test_external_text_is_not_markup(name: str) -> None:
    evil = "<script>alert(1)</script><a href='x'>y</a> & <b>z</b>"
    rows = synthetic_report.rows()
    rows.loc[rows["arm"] == "macvlan_bridge", ["arm", "topology"]] = evil
    rows["reason"] = rows["reason"].where(rows["status"] == "ok", evil)
    figure = FIGURES[name](rows)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in synthetic_report.notes(figure)
    for path, value in synthetic_report.leaves(json.loads(figure.to_json())):
        if not path.endswith("legendgroup"):  # is not shown
            assert not re.search(r"<script|<a |<b>z", str(value)), path
