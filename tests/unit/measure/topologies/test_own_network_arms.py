"""User-defined networks as arms: the parameters that they set, and one sentence for what cannot be measured."""

from pathlib import Path
from typing import Any

import example_networks
import msgspec
import pytest
import yaml

from labkit.common.errors import BadInput
from labkit.measure import topologies
from labkit.measure.experiments import survey
from labkit.measure.experiments.changes import check_place
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Part, Route
from labkit.runner import yaml_files

ROUTED = example_networks.routed({"kind": "vxlan", "id": 30})
OWN: dict[str, Any] = msgspec.to_builtins(ROUTED)


def written(folder: Path, file: str = "my.yaml", /, **changed: Any) -> Path:
    content = {key: value for key, value in (OWN | changed).items() if value is not None}
    path = folder / file
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def of(folder: Path, topology: Any, **given: Any) -> DatapathParameters:
    return DatapathParameters.of(yaml_files.with_files({"topology": topology, **given}, folder))


def test_network_is_an_arm_like_any_other(tmp_path: Path) -> None:
    written(tmp_path)
    result = of(tmp_path, "my.yaml, veth")
    assert result.topology_names == ("routed", "veth")
    assert (result.mtu_bytes, result.family) == (1450, 4)
    assert [arm.label for arm in survey.planned_arms(result)] == ["routed", "routed (again)", "veth"]
    assert (result.described_network("routed"), result.described_network("veth")) == (ROUTED, "veth")
    again = DatapathParameters.of(result.asdict())  # as in run.json, a notebook and a lab VM
    assert again == result
    assert again.topology[0].digest == ROUTED.digest  # type: ignore[union-attr]
    assert msgspec.structs.replace(ROUTED, mtu_bytes=1600).digest != ROUTED.digest


def test_names_of_networks_and_their_changes(tmp_path: Path) -> None:
    written(tmp_path, "two-sites.yml", name=None)
    assert of(tmp_path, ["veth", "two-sites.yml"], mtu_bytes=1450).topology_names == ("veth", "two-sites")
    written(tmp_path)
    with pytest.raises(BadInput, match=r"change small: mtu_bytes=1400: in the network routed"):
        of(tmp_path, "my.yaml", change="small: parameter mtu_bytes=1400")


def test_file_beside_the_parameters_or_in_the_project(tmp_path: Path) -> None:
    params, project = tmp_path / "project" / "params", tmp_path / "project"
    params.mkdir(parents=True)
    written(project, "own.yaml", name="of the project")
    for expected in ("of the project", "of params"):
        [network] = yaml_files.with_files({"topology": ["own.yaml"]}, params, project)["topology"]
        assert str(network) == expected
        written(params, "own.yaml", name="of params")
    written(tmp_path, "secret.yaml")
    for name in ("../../secret.yaml", str(tmp_path / "secret.yaml")):
        with pytest.raises(BadInput, match="outside of the folder"):
            yaml_files.with_files({"topology": [name]}, params, project)


def test_what_cannot_be_measured_is_one_sentence(tmp_path: Path) -> None:
    for changed, given, words in (
        ({"pairs": None}, {}, "routed has no pair of containers: name two that talk to each other"),
        ({"pairs": [["c1", "c9"]]}, {}, "a pair has c9, which is not a node; there are c1, n1, "),
        ({"pairs": [["c1", "r"]]}, {}, "a pair has r, which is not a container"),
        ({"pairs": [["c1", "c1"]]}, {}, "c1 is in a pair with itself"),
        ({}, {"pairs": [1, 2]}, "^pairs=2: the network routed names 1 pair: use at most that many"),
        ({"pairs": [["c1", "c2"], ["c2", "c1"]]}, {"pairs": 2}, "c2 is in two pairs of routed"),
        ({}, {"mtu_bytes": 1500}, "^mtu_bytes=1500: in the network routed eth0 .c1. has 1450: use mtu_bytes=1450"),
        ({}, {"family": 6}, "^family=6: in the network routed eth0 .c1. has 4"),
        ({}, {"endpoint": "guest"}, "routed does not support endpoint=guest"),
        ({}, {"nodes": "two", "where": "vm:debian", "slices": 0}, "routed cannot connect two hosts"),
        ({}, {"parent": "eth0"}, "routed has no parent"),
        ({"name": "veth"}, {}, "cannot be called veth, because .* of that name: change `name` in its file"),
        ({}, {"topology": "my.yaml,my.yaml"}, "topology needs at least one value, each once"),
        ({}, {"topology": "none.yaml"}, "there is no file .*none.yaml"),
        ({"parts": "rm -rf"}, {}, "does not describe a network"),
        ({"run": "id"}, {}, "does not describe a network: there is no field `run`"),
    ):  # fmt: skip
        written(tmp_path, **changed)
        with pytest.raises(BadInput, match=words) as refused:
            of(tmp_path, **({"topology": "my.yaml"} | given))
        assert "\n" not in str(refused.value)


def test_what_is_no_network_or_place_is_refused() -> None:
    for wrong in ({"name": "x"}, 5, {"name": "x", "parts": [{"type": "shell", "command": "id"}]}):
        with pytest.raises(BadInput, match="topology: a value is neither a name nor a network"):
            DatapathParameters.of({"topology": [wrong, "veth"]})
    check_place("site-1_A:eth0")
    with pytest.raises(BadInput):
        check_place("../x:eth0")


def test_routed_path_drops_tags() -> None:
    """A tunnel between bridges carries frames with a VLAN tag; a router between two subnets drops them."""
    topologies.check_tags(ROUTED, 7)
    parts: list[Part] = [Node("c1", container=True), Node("r", forwards=True), Node("c2", container=True)]
    for number in (1, 2):
        near, far = (f"10.0.{number}.{host}/24" for host in (1, 254))
        parts.append(Cable(CableEnd(f"c{number}", "eth0", near), CableEnd("r", f"to_c{number}", far)))
        parts.append(Route(f"c{number}", "default", via=f"10.0.{number}.254"))
    with pytest.raises(
        BadInput, match=r"vlan=7: apart drops frames .*, because c1 and c2 are in two subnets"
    ):
        topologies.check_tags(Network("apart", tuple(parts), (("c1", "c2"),)), 7)
