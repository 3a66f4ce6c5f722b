"""Changes as data: their two forms, rejected and clamped ones, and the names of arms that differ by a change."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import msgspec
import pandas as pd
import pytest

from labkit.analysis import load
from labkit.analysis.why import selection
from labkit.common.errors import BadInput, Failed
from labkit.measure import experiments
from labkit.measure.endpoints import Kernel
from labkit.measure.experiments import Change, Files, changes, survey
from labkit.measure.experiments.change_kinds.base import Place, digest
from labkit.measure.experiments.change_kinds.program import verified
from labkit.measure.experiments.change_kinds.registry import KINDS
from labkit.measure.topologies import Spec, Topology
from labkit.runner import yaml_files
from labkit.system import process

RULES = "table inet t {\n  chain c {\n    type filter hook input priority 0;\n    tcp dport 9 drop\n  }\n}\n"


def one(given: Any, folder: Path | None = None) -> Change:
    [result] = changes.parse(given, Files(folder))
    return result


def parameters(**given: Any) -> experiments.DatapathParameters:
    return experiments.DatapathParameters.of(given)


def test_text_and_mapping_forms() -> None:
    text = one("slow: offload gro off tso off at both and mtu 1400 at client0:eth0 and parameter streams=4")
    steps = [
        {"at": "both", "offload": {"gro": False, "tso": "off"}},
        {"at": "client0:eth0", "mtu": 1400},
        {"parameter": {"streams": "4"}},
    ]
    assert one({"name": "slow", "steps": steps}) == text
    places = [(step.kind, step.at) for step in text.steps]
    assert places == [("offload", "both"), ("mtu", "client0:eth0"), ("parameter", "")]
    short = one({"name": "x", "at": "server", "offload": {"gro": "off"}})
    assert short == one("x: offload gro off at server")


def test_program_for_packets_that_leave() -> None:
    arriving, leaving = one("a: tc_bpf pass at client"), one("b: tc_bpf egress pass at client")
    assert leaving.steps[0].options == {**arriving.steps[0].options, "hook": "egress"}
    given = {"name": "c", "steps": [{"kind": "tc_bpf", "at": "client", "options": leaving.steps[0].options}]}
    assert one(given).steps == leaving.steps
    given["steps"][0]["options"] = {**leaving.steps[0].options, "hook": "sideways"}  # type: ignore[index]
    with pytest.raises(BadInput, match="choose ingress, egress"):
        one(given)


def test_a_program_is_named_by_its_user_and_is_the_file_that_was_named(tmp_path: Path) -> None:
    (build := tmp_path / "iperf3").write_bytes(b"a build")
    text = f"new: program iperf3={build}"
    change = one(text)
    assert verified(change.programs["iperf3"]) == str(build)
    assert parameters(topology="veth", change=text).change == (change,)
    for given, words in (
        ({"protocol": "ping"}, "ping makes the load"),
        ({"endpoint": "guest"}, "programs of their own"),
    ):
        with pytest.raises(BadInput, match=words):
            parameters(topology="veth_bridge", change=text, **given)
    (file := tmp_path / "changes.yaml").write_text(json.dumps([json.loads(msgspec.json.encode(change))]))
    with pytest.raises(BadInput, match=r"changes.yaml may be somebody else's"):
        yaml_files.with_files({"change": str(file)}, None)
    with pytest.raises(BadInput, match="a sweep's file may be somebody else's"):
        yaml_files.with_files({"change": text}, None, of_a_sweep=True)
    build.write_bytes(b"another build")
    with pytest.raises(BadInput, match="has changed since the run was asked for"):
        verified(change.programs["iperf3"])
    build.chmod(0o666)
    with pytest.raises(BadInput, match="other users can write"):
        verified(change.programs["iperf3"])


def test_parameters_of_changes() -> None:
    text = "a: mtu 1400 at both; b: sysctl net.ipv4.tcp_rmem=4096 131072 6291456 at server"
    given = parameters(change=text)
    assert [change.name for change in given.change] == ["a", "b"]
    assert given.change[1].steps[0].options == {"net.ipv4.tcp_rmem": "4096 131072 6291456"}
    again = experiments.DatapathParameters.of(json.loads(json.dumps(given.asdict())))
    assert again == given
    [six] = changes.parse("six: parameter family=6", Files(None))
    usual = parameters(topology="veth", protocol="udp", change=[six])
    assert (usual.family, usual.with_change(six).family) == (4, 6)


def test_documented_examples_are_valid(tmp_path: Path) -> None:
    (tmp_path / "rules.nft").write_text(RULES)
    (tmp_path / "pass.o").write_bytes(b"object")
    short = digest(b"object")[:19]
    for name, kind in KINDS.items():
        if name == "function":  # has no textual form
            continue
        text = kind.example.replace("sha256:0123456789ab", short)
        assert one(f"x: {text}", tmp_path).steps[0].kind == name


def test_files_outside_the_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("root:x")
    (folder / "link").symlink_to(secret)
    for name in (str(secret), "../secret", "link", "~/secret"):
        with pytest.raises(BadInput):
            one({"name": "x", "at": "server", "nftables": name}, folder)
    (folder / "rules.nft").write_text(RULES)
    given = one({"name": "x", "at": "server", "nftables": "rules.nft"}, folder)
    assert given.steps[0].options["rules"] == RULES


def test_yaml_names_files_of_its_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "rules.nft").write_text(RULES)
    (folder / "changes.yaml").write_text("changes:\n- {name: rules, at: server, nftables: rules.nft}\n")
    [result] = yaml_files.changes(str(folder / "changes.yaml"), Files(None))
    assert result.steps[0].options == {"file": "rules.nft", "rules": RULES, "digest": digest(RULES.encode())}
    (folder / "changes.yaml").write_text("- {name: rules, at: server, nftables: ../secret}\n")
    (tmp_path / "secret").write_text("x")
    with pytest.raises(BadInput, match="outside of the folder"):
        yaml_files.changes(str(folder / "changes.yaml"), Files(None))
    with pytest.raises(BadInput, match="outside of the folder"):
        yaml_files.with_files({"change": str(folder / "changes.yaml")}, tmp_path / "elsewhere")


def test_rule_files_cannot_include() -> None:
    for rules in ('include "/etc/shadow"\n', "table inet t { }\n\tinclude\t'/etc/shadow'", "# include x"):
        with pytest.raises(BadInput, match="include is not allowed"):
            one({"name": "x", "at": "server", "nftables": {"rules": rules}})


def test_content_digest(tmp_path: Path) -> None:
    options = {"file": "x", "rules": RULES, "digest": digest(b"other")}
    step = {"kind": "nftables", "at": "server", "options": options}
    with pytest.raises(BadInput, match="do not match the digest"):
        one({"name": "x", "steps": [step]})
    (tmp_path / "pass.o").write_bytes(b"object")
    with pytest.raises(BadInput, match="add the digest of the file, sha256:"):
        one("x: xdp pass.o xdp at server", tmp_path)
    with pytest.raises(BadInput, match="the file has the digest"):
        one("x: xdp pass.o xdp sha256:000000000000 at server", tmp_path)
    result = one(f"x: xdp pass.o xdp {digest(b'object')[:19]} at server", tmp_path).steps[0].options
    assert result["digest"] == digest(b"object")


def test_arms_of_changes() -> None:
    given = parameters(topology=["veth", "veth_bridge"], change="a: mtu 1400 at both; b: parameter streams=4")
    result = [(arm.label, arm.role) for arm in survey.planned_arms(given)]
    assert result == [
        ("veth", "baseline"),
        ("veth (again)", "control"),
        ("veth+a", "variant"),
        ("veth+b", "variant"),
        ("veth_bridge", "variant"),
        ("veth_bridge+a", "variant"),
        ("veth_bridge+b", "variant"),
    ]
    four = survey.planned_arms(given)[3]
    assert four.parameters(given).streams == 4
    assert survey.planned_arms(given)[2].parameters(given) is given


def row(arm: str, **more: Any) -> dict[str, Any]:
    usual = {"topology": "veth", "endpoint": "namespace", "change": None, "streams": 1, "protocol": "tcp"}
    return {"arm": arm, **usual, **more}


def test_arms_are_labelled_and_found_by_their_difference(tmp_path: Path) -> None:
    effect = changes.parameter_effect("streams", 1, 4)
    plain, again = row("veth", changed=None), row("veth (again)", changed=None)
    four = row("veth+four", change="four", streams=4, changed=[effect])
    result = load.complete(pd.DataFrame([plain, again, four]))
    assert list(result["topology"]) == ["veth", "veth", "four"]
    assert list(result["arm"]) == ["veth", "veth (again)", "four"]
    assert list(result["streams"]) == [1, 1, 1]  # the parameter of the point, at which arms are compared
    other = row("veth_bridge", topology="veth_bridge", changed=None)
    result = load.complete(load.complete(pd.DataFrame([plain, again, four, other])))
    assert list(result["topology"]) == ["veth", "veth", "veth+four", "veth_bridge"]
    table = load.complete(pd.DataFrame([row("veth"), row("veth+four", change="four"), row("veth (again)")]))
    one = selection.Run(tmp_path, table, table, (tmp_path,))
    found = [one.arm(name) for name in ("four", "veth+four", "veth", "veth+five")]
    assert found == ["four", "four", "veth", None]
    assert list(table["built_topology"]) == ["veth"] * 3


def forward(topology: Topology) -> None:
    for space in topology.namespaces:
        space.sysctl("ipv4/ip_forward", 1)


def test_function_digest() -> None:
    [change] = changes.parse([forward])
    assert change.name == "forward"
    [step] = change.steps
    source = changes.sources([msgspec.to_builtins(change)])[step.options["digest"]]
    assert source.startswith("def forward(topology: Topology) -> None:")
    assert parameters(change=[forward]).asdict()["change"][0]["steps"][0]["options"] == step.options


def test_foreign_parameters_bring_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a function of one's own needs a name and a source."""
    options = {"name": "x", "digest": "d", "source": "1"}
    for item in (
        lambda topology: None,
        print,
        {"name": "x", "function": "import os"},
        {"name": "x", "function": {"name": "x", "source": "def x(topology): raise SystemExit"}},
        {"name": "x", "steps": [{"kind": "function", "at": "", "options": options}]},
    ):
        with pytest.raises(BadInput):
            changes.parse([item])
    monkeypatch.setattr(changes, "SOURCES", {})
    known = {"name": "x", "steps": [{"kind": "function", "at": "", "options": {"name": "x", "digest": "d"}}]}
    [change] = changes.parse([known])
    assert changes.sources([msgspec.to_builtins(change)]) == {}
    topology = Topology("veth", Spec(), [], [])
    with pytest.raises(BadInput, match="lacks the code of the function x"):
        changes.apply(change, topology)


def without_effect(topology: Topology) -> None:
    """Change nothing."""


def test_programs_that_come_and_go_are_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """labkit's own programs begin and end meanwhile."""
    empty = Topology("empty", Spec(), [], [])
    [change] = changes.parse(without_effect)
    of_reads = [["python"], ["python", "ping"], ["python", "tc"], ["python"]]
    reads = iter(of_reads)
    monkeypatch.setattr(changes.machine, "pids_by_namespace", lambda: [(1, 2, name) for name in next(reads)])
    with pytest.raises(Failed, match="has no effect on any setting or program of empty"):
        changes.apply(change, empty)
    reads = iter([*of_reads[:2], ["python", "sleep"], ["python", "sleep"]])
    [effect] = changes.apply(change, empty)
    assert (effect["setting"], effect["before"], effect["after"]) == ("programs", "python", "python, sleep")


PLACE = Place("server", cast("Kernel", type("Space", (), {"name": "server0"})()), "eth0")
TBF = "tbf root rate 1Gbit burst 256Kb lat 10ms"


def test_clamped_value_is_an_error_and_another_form_of_the_value_is_none() -> None:
    for kind, options, after, is_clamped in (
        ("sysctl", {"net.core.x": "100"}, {"net.core.x": "4096"}, True),
        ("sysctl", {"net.ipv4.tcp_rmem": "1 2 3"}, {"net.ipv4.tcp_rmem": "4096 2 3"}, True),
        ("ring", {"rx": "9000"}, {"ring rx": "4096", "ring tx": "64"}, True),
        ("channels", {"rx-mini": "2"}, {"channels rx mini": "1"}, True),
        ("qdisc", {"words": "fq_codel limit 100000000"}, {"qdisc": "fq_codel root limit 10240p flows 1024"}, True),
        ("sysctl", {"net.ipv4.tcp_rmem": "4096\t2  3"}, {"net.ipv4.tcp_rmem": "4096 2 3"}, False),
        ("sysctl", {"net.ipv4.ip_local_reserved_ports": "1,2"}, {"net.ipv4.ip_local_reserved_ports": "1-2"}, False),
        ("ring", {"rx": "4096"}, {"ring rx": "4096"}, False),
        ("qdisc", {"words": "fq_codel limit 500"}, {"qdisc": "fq_codel root limit 500p flows 1024"}, False),
        ("qdisc", {"words": "tbf rate 1gbit burst 262144 latency 10ms"}, {"qdisc": TBF}, False),
        ("qdisc", {"words": "noqueue"}, {"qdisc": ""}, False),
    ):  # fmt: skip
        with pytest.raises(Failed, match="instead of") if is_clamped else nullcontext():
            KINDS[kind].verify(after, options, PLACE)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [*((name, True) for name in ("tx-udp_tnl-segmentation", "tx-checksum-ip-generic", "gro")),
     *((name, False) for name in ("-K", "Tx", "tx;ls", "tx on"))],
)  # fmt: skip
def test_names_of_features(name: str, is_one: bool) -> None:
    with nullcontext() if is_one else pytest.raises(BadInput):
        KINDS["offload"].check({name: "off"})


def test_route_of_ipv6_is_looked_for_among_those_of_ipv6() -> None:
    """A default route has its version in its gateway alone. Else it would have no effect."""
    asked: list[tuple[str, ...]] = []
    run = lambda _self, *argv: asked.append(argv) or process.Ended(argv, 0, "", "", 0.0)  # noqa: E731
    place = Place("client", cast("Kernel", type("Space", (), {"name": "client0", "run": run})()), "eth0")
    for via in ("10.2.0.1", "fd00::1"):
        KINDS["route"].state(place, {"to": "default", "via": via})
    assert [argv[1] for argv in asked] == ["-4", "-6"]
