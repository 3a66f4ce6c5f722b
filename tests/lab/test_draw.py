"""`labkit draw` prints every form of the drawing of a built topology and leaves nothing behind."""

import json
from pathlib import Path

import pytest
from conftest import Need
from sandbox import Done, Sandbox, one_sentence, until
from topology_kinds import require_kind

pytestmark = [pytest.mark.long, pytest.mark.needs("user namespaces", "ip", "veth", "bridge")]


def drawn(machine: Sandbox, *words: str) -> str:
    return checked(machine.labkit("draw", *words))


def checked(done: Done) -> str:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


TREES = ("loopback", "veth_bridge", "macvlan_bridge", "vxlan")  # the doctor builds every topology
REDIRECT, MERMAID, JSON = "veth_redirect", "veth --mermaid", "veth --json mtu_bytes=9000 family=6"
BAD = {
    "macvlan_passthru": "macvlan passthru takes one device on a parent",
    "veth --html /proc/nothing/page.html": "cannot write /proc/nothing/page.html",
}


@pytest.fixture(scope="module")
def drawings(machine: Sandbox) -> dict[str, Done]:
    """Draw all of these in one process; topologies that this kernel does not have are refused."""
    every = (*TREES, REDIRECT, MERMAID, JSON, *BAD)
    return dict(zip(every, machine.commands(*(f"draw {words}" for words in every)).values(), strict=True))


@pytest.mark.parametrize("name", TREES)
def test_tree_of_every_topology(name: str, drawings: dict[str, Done], need: Need) -> None:
    require_kind(name, need)
    lines = checked(drawings[name]).splitlines()
    assert lines[0].startswith(f"{name}, 1 pair, Linux ")
    assert "10.1.0." in "\n".join(lines)
    assert set(lines) >= {"client0", "server0"} or name == "loopback"


def test_redirect_needs_the_right_to_load_programs(drawings: dict[str, Done]) -> None:
    assert "it needs CAP_BPF and CAP_NET_ADMIN" in one_sentence(drawings[REDIRECT])


def test_mermaid_and_json(drawings: dict[str, Done]) -> None:
    assert 'subgraph n0["client0"]' in checked(drawings[MERMAID])
    state = json.loads(checked(drawings[JSON]))
    eth0 = {
        space["name"]: next(one for one in space["interfaces"] if one["name"] == "eth0")
        for space in state["namespaces"]
    }
    assert eth0["client0"]["peer"] == {"namespace": "server0", "interface": "eth0"}
    assert {one["mtu_bytes"] for one in eth0.values()} == {9000}
    assert "fd00::1:1/64" in eth0["client0"]["addresses"]


def test_figure_of_many_pairs_as_file(machine: Sandbox, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert drawn(machine, "veth_bridge", "pairs=128", "--html", str(page)) == f"drawing: {page}\n"
    text = page.read_text()
    assert "120 more pairs are not drawn" in text
    assert "Plotly.newPlot" in text
    assert "client7" in text
    assert "client8" not in text.rpartition("Plotly.newPlot")[2]


@pytest.mark.long
@pytest.mark.needs("chromium")
def test_figure_as_svg(machine: Sandbox, tmp_path: Path) -> None:
    picture = tmp_path / "veth.svg"
    assert drawn(machine, "veth", "--svg", str(picture)) == f"drawing: {picture}\n"
    assert ">client0<" in picture.read_text()


def test_what_the_kernel_or_the_disk_refuses_is_one_sentence(drawings: dict[str, Done]) -> None:
    for words, sentence in BAD.items():
        assert one_sentence(drawings[words]).startswith(sentence)
        assert drawings[words].stdout == ""


def test_draw_leaves_nothing(machine: Sandbox) -> None:
    before = machine.interfaces()
    drawn(machine, "veth_bridge", "pairs=4")
    assert machine.interfaces() == before
    assert machine.processes() == {}
    assert until(machine.only_namespace, 10)
