"""YAML files by anyone: every error is one sentence, whatever the content."""

from pathlib import Path

import pytest

from labkit.common.errors import BadInput, Failed, error_by_name
from labkit.measure.topologies.network.parts import Cable
from labkit.runner import yaml_files

NASTY = {
    "a number of 5,000 digits": "9" * 5000,
    "a date that is none": "2001-13-45",
    "no binary number": "0b_",
    "an int that is none": "!!int abc",
    "a float that is none": "!!float abc",
    "a time that is none": "!!timestamp abc",
    "a truth that is none": "!!bool abc",
    "deep": "[" * 3000,
    "a program": "!!python/object/apply:os.system [true]",
    "no text": "\x00",
    "half of a character": '"\\ud800"',
    "a list in itself": "&a [*a]",
}


def test_invalid_content_is_one_sentence(tmp_path: Path) -> None:
    for content in NASTY.values():
        path = tmp_path / "own.yaml"
        path.write_text(content)
        with pytest.raises(
            BadInput, match=r"own\.yaml (is not a valid YAML file|does not describe a network): "
        ) as refused:
            yaml_files.network(path)
        assert "\n" not in str(refused.value)


def test_containerlab_by_anyone(tmp_path: Path) -> None:
    for links, words in (
        ("[{endpoints: [a:eth1, c:eth1]}]", "link 1: c:eth1 is no interface of a node of the file"),
        ("[{endpoints: [a, b:eth1]}]", "link 1: a: is no interface of a node of the file"),
        (
            "[{endpoints: [a:eth1, b:eth1]}, {endpoints: [a:eth1, b:eth2]}]",
            "link 2: a:eth1 has another link already",
        ),
        ("[{endpoints: 5}]", "is no topology file of containerlab: links[0].endpoints: a list is needed"),
        ("[{type: dummy, endpoint: {node: a, interface: eth1}}]", "has no link between two nodes"),
        (
            "[{type: vxlan, endpoint: 'a:eth1', remote: '$(id)', vni: 5}]",
            "link 1: '$(id)' does not appear to be",
        ),
        ("[{endpoints: [a:eth1, b:eth1], mtu: 99999}]", "is too large"),
        (f"[{'{endpoints: [a:eth1, b:eth1]},' * 1001}]", "has more than 1,000 nodes or links"),
    ):
        path = tmp_path / "own.clab.yml"
        path.write_text(f"topology: {{nodes: {{a: null, b: {{kind: linux}}}}, links: {links}}}")
        with pytest.raises(BadInput) as refused:
            yaml_files.network(path)
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)


def test_containerlab_with_joined_bridges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two bridges with a link between them are one subnet. What is not read is named; long names stay different."""
    path = tmp_path / "own.clab.yml"
    spines = ", ".join(f"leaf-of-the-rack-{number}: null" for number in range(990))
    nodes = f"a: null, b: null, s1: {{kind: bridge}}, s2: {{kind: bridge}}, {spines}"
    links = "{endpoints: [a:e, s1:a], vars: 1}, {endpoints: [b:e, s2:b]}, {endpoints: [s1:up, s2:up]}"
    path.write_text(f"on: 5\ntopology: {{why: 1, nodes: {{{nodes}}}, links: [{links}]}}")
    network = yaml_files.network(path)
    assert network.pairs == (("a", "b"),)
    addresses = [part.one.address for part in network.parts if isinstance(part, Cable)]
    assert addresses == ["198.18.0.1/24", "198.18.0.2/24", None]
    assert "leaves out True, vars of links and why of topology" in capsys.readouterr().err


def test_link_loops_and_error_classes(tmp_path: Path) -> None:
    loop = tmp_path / "own.yaml"
    loop.symlink_to(loop)
    with pytest.raises(BadInput, match=r"own\.yaml cannot be read: Too many levels of symbolic links"):
        yaml_files.read(loop)
    assert isinstance(error_by_name("BadInput", "x"), BadInput)
    assert type(error_by_name("LinkError", "x")) is Failed
    assert type(error_by_name("print", "x")) is Failed
