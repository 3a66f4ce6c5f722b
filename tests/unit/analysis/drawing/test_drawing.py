"""Drawings of made-up states: Mermaid text, and the positions of a figure's boxes and lines."""

import itertools
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest
from conftest import ROOT
from example_states import LO, bridged, mirrored, overlay, tunnelled, veth

from labkit.analysis import drawing
from labkit.analysis.drawing import figure
from labkit.analysis.drawing.flat_layout import Layout, TextBox
from labkit.analysis.drawing.folded_layout import Levels, places
from labkit.common.topology_state import Namespace, Place, State


def test_mermaid() -> None:
    text = drawing.mermaid(tunnelled())
    assert text.splitlines()[1] == "flowchart LR"
    assert '  subgraph n0["client0"]\n    n0i100["eth0 · vxlan 42<br/>10.1.0.1/8"]' in text
    assert "  n0i100 == tunnel === n1i100" in text
    assert "  n0i101 --- n1i101" in text
    assert "  n1i100 -. lower .- n1i101" in text
    assert '["lo' not in text
    assert '["120 more pairs are not drawn"]' in drawing.mermaid(bridged(128))
    assert drawing.mermaid(bridged(128)).count(" --- ") == 16


def test_names_are_escaped() -> None:
    name = 'a"<b>\\#'
    spaces = [Namespace(name, [veth(name, 2, Place("x", "y"))], [])]
    state = msgspec.structs.replace(tunnelled(), topology=name, pairs=[], namespaces=spaces)
    assert 'n0["a#quot;#lt;b#gt;\\#35;"]' in drawing.mermaid(state)
    text = next(trace for trace in figure.topology(state).data if trace.mode == "text").text[0]
    assert text == '<b>a"&lt;b&gt;\\#</b>'


def test_tree() -> None:
    lines = drawing.tree(bridged(1)).splitlines()
    assert lines[0] == "veth_bridge, 1 pair, Linux 6.1"
    assert "  eth0    veth    MTU 1500   10.1.0.1/8; peer between/port0" in lines
    assert "  port0   veth    MTU 1500   peer client0/eth0; port of bridge" in lines
    assert lines[-1] == "  route default via 10.9.9.9 dev bridge"
    down = msgspec.structs.replace(LO, name="eth1", kind="dummy", carrier=False)
    state = msgspec.structs.replace(bridged(1), namespaces=[Namespace("one", [down], [])])
    assert "eth1  dummy  MTU 65536  no carrier" in drawing.tree(state)
    lines = drawing.tree(overlay()).splitlines()
    assert "  gretun-cont  gre       MTU 1550   tunnel 26.0.0.2 to 28.0.0.2 (lc2/gretun-cont)" in lines
    assert "  route 23.0.0.0/24 dev gretun-cont" in lines
    assert "gre0" not in drawing.tree(overlay())
    assert drawing.mermaid(overlay()).count("== tunnel ===") == 2


def overlap(one: TextBox, other: TextBox) -> bool:
    return one.x < other.right and other.x < one.right and one.y < other.bottom and other.y < one.bottom


def crosses(line: list[tuple[float, float]], box: TextBox) -> bool:
    """Return whether a line crosses the inside of a box, checked at many points."""
    steps = [step / 200 for step in range(201)]
    for (x0, y0), (x1, y1) in itertools.pairwise(line):
        for at in steps:
            x, y = x0 + (x1 - x0) * at, y0 + (y1 - y0) * at
            if box.x + 1 < x < box.right - 1 and box.y + 1 < y < box.bottom - 1:
                return True
    return False


@pytest.mark.parametrize(
    ("state", "places_of"),
    [
        (tunnelled(), Layout),
        (bridged(8), places),
        (mirrored(2, pairs=3), places),
        (mirrored(8), Layout),
        (overlay(), Layout),
        (overlay(), places),
    ],
)
def test_no_overlaps(state: State, places_of: Callable[[State], Layout | Levels]) -> None:
    places = places_of(drawing.simplify(state))
    boxes = list(places.interfaces.values())
    assert len(boxes) == sum(len(space.interfaces) for space in drawing.simplify(state).namespaces)
    assert not any(overlap(*two) for two in itertools.combinations(boxes, 2))
    assert not any(overlap(*two) for two in itertools.combinations(places.namespaces.values(), 2))
    assert not any(crosses(line, box) for _, line in places.lines for box in boxes)
    for place, box in places.interfaces.items():
        space = places.namespaces[place.namespace]
        assert space.x < box.x < box.right < space.right
        assert 0 <= space.y < box.y < box.bottom < space.bottom <= places.height


def test_deep_network_is_folded_unless_a_line_would_cross_a_name() -> None:
    folded = places(drawing.simplify(overlay()))
    assert isinstance(folded, Levels)
    assert figure.topology(overlay()).layout.width < 900
    levels: dict[float, list[str]] = {}
    for name, box in sorted(folded.namespaces.items(), key=lambda item: (item[1].y, item[1].x)):
        levels.setdefault(box.y, []).append(name)
    assert list(levels.values()) == [
        ["sc1", "sc2"], ["lc1", "lc2"], ["con_ns1", "con_ns3", "con_ns2"], ["cs1", "cs2", "cs5", "cs3", "cs4"],
    ]  # fmt: skip
    tunnels = [line for join, line in folded.lines if join.kind == "tunnel"]
    assert [len(line) for line in tunnels] == [2, 2], "straight from end to end"
    assert all(one[1] == other[1] for one, other in tunnels)
    titles = [
        TextBox([], len(box.lines[0]) * 7.0, 16, box.x + box.title_px + 4, box.y + 4)
        for box in folded.namespaces.values()
    ]
    assert not any(crosses(line, box) for _, line in folded.lines for box in titles)
    assert isinstance(places(drawing.simplify(bridged(8))), Layout)
    long = "a_container_whose_name_fills_its_box"
    text = msgspec.json.encode(overlay()).decode().replace('"cs5"', f'"{long}"')
    state = msgspec.json.decode(text, type=State)
    assert isinstance(places(drawing.simplify(state)), Layout), "the line from above would run over the name"


def test_figure_has_a_legend_and_counts_omitted_pairs() -> None:
    drawn = figure.topology(tunnelled())
    lines = [trace for trace in drawn.data if trace.mode == "lines"]
    assert [trace.name for trace in lines] == ["veth or netkit pair", "made on a lower device", "tunnel"]
    assert len({(trace.line.dash, trace.line.color) for trace in lines}) == 3
    words = [text for trace in drawn.data if trace.mode == "text" for text in trace.text]
    assert "eth0 · vxlan 42<br>10.1.0.1/8" in words
    assert "<b>server0</b>" in words
    assert drawn.layout.title.text == "vxlan, 1 pair"
    drawn = figure.topology(bridged(128))
    assert drawn.layout.title.text == "veth_bridge, 128 pairs"
    assert drawn.layout.title.subtitle.text.endswith("; 120 more pairs are not drawn")
    assert drawn.layout.height < 1000
    assert "not drawn" not in figure.topology(bridged(8)).layout.title.subtitle.text


def test_figure_needs_no_pandas() -> None:
    """An emulated machine takes half a minute to import it."""
    code = "import sys; from labkit.analysis.drawing import figure; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
