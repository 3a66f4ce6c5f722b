"""`labkit publish` writes a run or a sweep as a few files, which labkit reads as any run."""

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import synthetic_rows
import synthetic_why_run
from conftest import ROOT

import labkit
from labkit import cli
from labkit.analysis import compare_runs, load, published_runs, verdicts, why
from labkit.analysis.flame import folded_stacks, load_profiles
from labkit.commands import arguments
from labkit.commands.publish import PRIVATE, publish
from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.measure import experiments
from labkit.runner import yaml_files

DESCRIBED: dict[str, Any] = {
    "experiment": "datapaths", "parameters": {"rounds": 5, "protocol": "tcp"}, "seed": 3, "why_stopped": {},
    "created": "2026-11-21T09:00:00Z", "finished": "2026-11-21T09:05:00Z", "measuring_s": 12.5,
}  # fmt: skip


def made(**changes: Any) -> list[synthetic_rows.Row]:
    """Return rows whose recorded seed is one that labkit accepts."""
    return [row | {"seed": 7} for row in synthetic_rows.rows(**changes)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return synthetic_rows.save(tmp_path / "run", made(run="run"), **DESCRIBED)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Return a sweep of two runs of the same point: their rounds have the same numbers."""
    folder = tmp_path / "sweep"
    for seed, name in enumerate(("one", "two")):
        synthetic_rows.save(folder / name, made(run=name, seed=seed), **DESCRIBED)
    run_folder.write_json(folder / "sweep.json", {"sweep": "mine", "points": ["one", "two"]})
    return folder


def test_other_programs_are_published_without_their_names(sweep: Path, tmp_path: Path) -> None:
    for name, share in (("one", 0.02), ("two", 0.31), ("one", 1.02)):
        described = run_folder.read_json(sweep / name / "run.json")
        others = [{"name": "my-secret-tool", "cpu_share": share}]
        run_folder.write_json(sweep / name / "run.json", described | {"others": others})
        publish(sweep, tmp_path / "mine")
        assert "secret" not in (tmp_path / "mine/run.json").read_text()
        # More than all CPUs, as an older labkit could say, is no share.
        known = {0.02: 0.02, 0.31: 0.31, 1.02: None}[share]
        assert run_folder.read_run(tmp_path / "mine")["max_foreign_cpu_share"] == known


def test_account_of_a_machine_is_not_published(tmp_path: Path) -> None:
    where = "ssh:alice@box"
    rows = [row | {"where": where, "reason": f"{where}: no answer"} for row in made(run="run")]
    parameters = DESCRIBED["parameters"] | {"where": where}
    folder = synthetic_rows.save(tmp_path / "run", rows, **DESCRIBED | {"parameters": parameters})
    publish(folder, tmp_path / "mine")
    text = (tmp_path / "mine/run.json").read_text()
    assert "where=ssh:box" in text
    assert "alice" not in text
    published = load.load(tmp_path / "mine")
    assert set(published["where"]) == {"ssh:box"}
    assert set(published["reason"]) == {"ssh:box: no answer"}


def test_published_run_has_the_same_verdicts(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "results" / "mine"
    assert cli.main(["publish", str(run), str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["rows.parquet", "run.json"]
    described = run_folder.read_run(out)
    assert described["command"] == "labkit run datapaths rounds=5"
    assert described["rows_count"] == len(run_folder.read_rows(run))
    assert described["max_foreign_cpu_share"] is None
    assert [host["kernel"] for host in described["hosts"]] == ["6.1.0"]
    [here], [there] = (verdicts.verdicts(load.load(path)).to_dict("records") for path in (run, out))
    assert (there["ratio"], there["low"], there["sentence"]) == (here["ratio"], here["low"], here["sentence"])
    opened = labkit.open(out)
    assert opened.figures.forest.data


def test_published_run_is_explained_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of other programs' own code are left out, and what the kernel did in them stays."""
    run = synthetic_why_run.run(tmp_path / "run", run="run", seed=7)
    described = run_folder.read_json(run / "run.json") | DESCRIBED | {"run": "run"}
    run_folder.write_json(run / "run.json", described)
    stacks = run / "artefacts/1-p0/0.folded.gz"
    secret = "elsewhere;[secret];net_rx_action_[k];bpf_secret_flush;bpf_prog_0123456789abcdef_x 5\n"
    stacks.write_bytes(gzip.compress(gzip.decompress(stacks.read_bytes()) + secret.encode()))
    publish(run, tmp_path / "mine")
    assert len(list((tmp_path / "mine").rglob("*"))) == 2
    rows = published_runs.read_rows(tmp_path / "mine")
    [row] = [row for row in rows if row["artefact"] == "artefacts/1-p0/0.folded.gz"]
    published = load_profiles.stacks_of(row)
    assert published["elsewhere"] == 99
    assert published["elsewhere;net_rx_action_[k];bpf_prog_0123456789abcdef_x"] == 5
    publish(tmp_path / "mine", tmp_path / "again")
    said = [why.explain(str(one), None).sentences() for one in (run, tmp_path / "mine", tmp_path / "again")]
    for name, sentences in zip(("mine", "again"), said[1:], strict=True):
        assert sentences == [sentence.replace(str(run), str(tmp_path / name)) for sentence in said[0]]
    assert "planted" in said[0][0]
    shown: list[Any] = []
    monkeypatch.setattr("labkit.notebook.display", shown.append)
    labkit.open(tmp_path / "mine").causes()
    assert [one.data for one in shown[:-1]] == ["### macvlan_bridge"]
    assert shown[-1].flames
    stacks.unlink()
    assert publish(run, tmp_path / "without") == len(rows)
    there = sum(row["folded_stacks"] is not None for row in rows)
    left = published_runs.read_rows(tmp_path / "without")
    assert sum(row["folded_stacks"] is not None for row in left) == there - 1 > 0
    for text in ("a 4\na;b\n", f"a 4\n{'b' * (folded_stacks.MAX_LENGTH + 1)} 4"):
        with pytest.raises(BadInput, match=r"0\.folded\.gz, line 2, is not a folded stack"):
            load_profiles.stacks_of(row | {"folded_stacks": text})


def test_published_command_is_that_of_the_run(tmp_path: Path) -> None:
    """A shell and labkit read the same parameters from it, also changes and a network of one's own."""
    rules = (
        "# it's a rule\ntable inet own { chain in { type filter hook input priority 0; udp dport 9 drop; }; }"
    )
    changes = [
        {"name": "off", "at": "both", "offload": {"gro": False}},
        {"name": "rules", "at": "server", "nftables": {"rules": rules}},
    ]
    given = {"topology": ["veth", str(ROOT / "docs/network.yaml")], "change": changes, "protocol": "udp_rr"}
    kind = experiments.find("datapaths").parameters
    parameters = kind.of(yaml_files.with_files(given, None)).asdict()
    described = DESCRIBED | {"parameters": parameters, "percentile": "p99"}
    publish(synthetic_rows.save(tmp_path / "run", made(run="run"), **described), tmp_path / "mine")
    command = shlex.split(run_folder.read_run(tmp_path / "mine")["command"])
    assert (command[:3], command[-2:]) == (["labkit", "run", "datapaths"], ["--percentile", "p99"])
    typed = yaml_files.with_files(arguments.name_value_pairs(command[3:-2]), None)
    assert kind.of(typed).asdict() == parameters
    with pytest.raises(BadInput, match=r"change=.*begins as a list in JSON and is none"):
        yaml_files.with_files({"change": '[{"name"'}, None)


def test_run_is_compared_with_a_published_one(run: Path, tmp_path: Path) -> None:
    publish(run, tmp_path / "mine")
    other = synthetic_rows.save(tmp_path / "other", made(run="other", seed=8), **DESCRIBED)
    table, _doubts = compare_runs.compare(other, tmp_path / "mine")
    macvlan = table[table["topology"].eq("macvlan_bridge")]
    assert macvlan["relative_ratio"].tolist() == pytest.approx([1.0], abs=0.03)


def test_runs_of_a_sweep_stay_apart(sweep: Path, tmp_path: Path) -> None:
    """Rounds of the same number in two runs are different set-ups."""
    publish(sweep, tmp_path / "mine")
    [line] = verdicts.verdicts(load.load(tmp_path / "mine")).to_dict("records")
    assert line["rounds_count"] == 10
    assert run_folder.read_run(tmp_path / "mine")["command"] == "labkit sweep params/mine.yaml"
    described = run_folder.read_object(sweep / "sweep.json") | {"percentile": "p99"}
    run_folder.write_json(sweep / "sweep.json", described)
    publish(sweep, tmp_path / "mine")
    published = run_folder.read_run(tmp_path / "mine")
    assert published["command"] == "labkit sweep params/mine.yaml --percentile p99"
    assert published["percentile"] == "p99"


def test_changed_file_is_refused(run: Path, tmp_path: Path) -> None:
    publish(run, tmp_path / "mine")
    path = tmp_path / "mine" / published_runs.ROWS
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(BadInput, match="its SHA-256 digest is not that"):
        load.load(tmp_path / "mine")


def test_unfinished_run_is_not_published(run: Path, sweep: Path, tmp_path: Path) -> None:
    described = json.loads((run / "run.json").read_text())
    del described["finished"]
    (run / "run.json").write_text(json.dumps(described))
    with pytest.raises(BadInput, match="is not finished"):
        publish(run, tmp_path / "mine")
    (sweep / "two" / "run.json").unlink()
    with pytest.raises(BadInput, match=r"two of the sweep .* is not measured yet"):
        publish(sweep, tmp_path / "mine")


def test_path_of_the_machine_is_not_published(tmp_path: Path) -> None:
    rows = made(run="run", reason="cannot read " + "/".join(["", "home", "somebody"]))
    run = synthetic_rows.save(tmp_path / "run", rows, **DESCRIBED)
    with pytest.raises(BadInput, match="the column reason quotes a path of this machine"):
        publish(run, tmp_path / "mine")
    place = "/".join(["", "root", "profile.py"])
    rows = made(run="other", observed={"stacks": [{"file": place}]})
    run = synthetic_rows.save(tmp_path / "other", rows, **DESCRIBED)
    with pytest.raises(BadInput, match=r"the column observed quotes a path .* measure it again without"):
        publish(run, tmp_path / "mine")
    given = DESCRIBED | {"parameters": {"rounds": 5, "profile": [place]}}
    run = synthetic_rows.save(tmp_path / "third", made(run="third"), **given)
    with pytest.raises(BadInput, match=r"run.json: (command|parameters) quotes a path"):
        publish(run, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_measured_run_is_not_overwritten(run: Path) -> None:
    with pytest.raises(BadInput, match="holds a run that was measured there"):
        publish(run, run)


def test_places_of_a_machine_are_private_and_others_are_not() -> None:
    for words in ("var home", "opt trex", "export home", "data me", "home"):
        assert PRIVATE.search(f"trex={'/'.join(['', *words.split(), 'file'])}"), words
    public = "data/datapaths/run/rows /proc/sys/net/core/rmem_max /usr/bin/perf net.ipv4/opt 1/data/2"
    for text in public.split():
        assert not PRIVATE.search(text), text
