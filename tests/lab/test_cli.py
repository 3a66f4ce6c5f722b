"""The command line as a new user types it: results, and one sentence for every error."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from sandbox import LABKIT, Done, Sandbox, names_in_run, one_sentence, only_run, sandbox, until

from labkit import __version__
from labkit.commands import doctor
from labkit.common import run_folder, schema
from labkit.measure import experiments
from labkit.measure.topologies import TABLE

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "veth", "bridge")

SHORT = ("duration_s=1", "omit_s=0")
OF_RUN = ("topology=veth,veth_bridge", "slices=2", "whole_runs=0")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with sandbox(tmp_path_factory.mktemp("machine")) as made:
        yield made


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a folder with notebooks and params like this project's."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "params").mkdir()
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
    return folder


@pytest.fixture(scope="module")
def run(machine: Sandbox) -> Path:
    """Provide the folder of a run of two topologies."""
    folder = machine.data / "datapaths" / "first"
    done = machine.labkit("run", "datapaths", *OF_RUN, "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    assert "Medians" in done.stdout
    assert "Verdicts" in done.stdout
    return folder


BAD_RUNS = [
    ("run nothing", "nothing is not an experiment: choose datapaths"),
    ("run datapaths pairs=0", "pairs=0 is outside 1 to 500"),
    ("run datapaths pairs", "'pairs' is not a parameter: write name=value"),
    ("run datapaths where=vm:x", "no kernel 'x' can be booted here"),
    ("run datapaths congestion=nonesuch duration_s=1 omit_s=0", "congestion"),
    ("shell nothing", "nothing is not a topology: choose"),
    ("report nowhere", "there is no folder nowhere: name the folder of a run or a sweep"),
    ("compare nowhere elsewhere", "there is no run folder nowhere"),
    ("sweep nowhere.yaml", "there is no file nowhere.yaml"),
]


@pytest.fixture(scope="module")
def refused(machine: Sandbox) -> dict[str, Done]:
    return machine.commands(*(line for line, _ in BAD_RUNS))


@pytest.mark.parametrize(("line", "sentence"), BAD_RUNS, ids=[line for line, _ in BAD_RUNS])
def test_bad_input_is_one_sentence(line: str, sentence: str, refused: dict[str, Done]) -> None:
    done = refused[line]
    assert sentence in one_sentence(done)
    assert done.stdout == "" or "congestion" in line


def test_bad_input_leaves_no_run_behind(tmp_path: Path) -> None:
    with sandbox(tmp_path) as machine:
        machine.labkit("run", "datapaths", "pairs=0")
        machine.labkit("run", "nothing")
        assert not machine.data.exists()


def test_usage(machine: Sandbox) -> None:
    for line, done in machine.commands("", "nothing", "run", "run --nothing", "sweep").items():
        assert done.returncode == 2, line
        assert done.stderr.startswith("usage: labkit"), line


def test_help_lists_parameters_topologies_and_commands(machine: Sandbox) -> None:
    every = machine.labkit("run", "--help").stdout
    assert all(f"\n  {name} " in every for name in experiments.TABLE)
    done = machine.labkit("run", "datapaths", "--help")
    assert done.returncode == 0
    for word in ("datapaths", "pairs=1", "mtu_bytes=1500", "rate_bps=none", *TABLE):
        assert word in done.stdout, word
    assert machine.labkit("--version").stdout == f"labkit {__version__}\n"
    commands = machine.labkit("--help").stdout
    assert all(f"  {name} " in commands for name in ("doctor", "run", "sweep", "report", "compare", "shell"))


def test_doctor_as_json(machine: Sandbox) -> None:
    done = machine.labkit("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["machine"]["kernel"] == os.uname().release
    assert report.keys() == doctor.JSON.keys()
    fields = set(re.findall(r"`(\w+)`", doctor.JSON["capabilities"]))
    assert all(one.keys() == fields for one in report["capabilities"])
    assert report["machine"].keys() <= schema.BY_NAME.keys()
    assert {"veth", "ipvlan"} <= {one["name"] for one in report["capabilities"]}
    assert "  ✓ veth\n" in machine.labkit("doctor", "--all", PYTHONUTF8="1").stdout


def half_written(folder: Path) -> dict[str, Path]:
    """Return folders that are not a run or an incomplete one, each named by what is missing."""
    bad = {name: folder / name for name in ("empty", "rubbish", "half row", "half sweep")}
    for path in bad.values():
        (path / "rows").mkdir(parents=True)
    (bad["rubbish"] / "run.json").write_text('{"half": ')
    described = {"experiment": "datapaths", "run": "x", "parameters": {}, "seed": 1, "finished": "now"}
    run_folder.write_json(bad["half row"] / "run.json", described)
    (bad["half row"] / "rows" / "1-r0.jsonl").write_text('{"topology": "veth", "pro')
    run_folder.write_json(bad["half sweep"] / "sweep.json", {"points": ["tcp"], "sweep": "x"})
    return bad


@pytest.mark.parametrize("command", [pytest.param("report", marks=pytest.mark.long), "compare"])
def test_half_written_run_folder(
    command: str, run: Path, machine: Sandbox, tmp_path: Path, project: Path
) -> None:
    paths = half_written(tmp_path)
    lines = {
        name: shlex.join([command, str(path), *([str(run)] if command == "compare" else [])])
        for name, path in paths.items()
    }
    ended = machine.commands(*lines.values(), cwd=project)
    for name, path in paths.items():
        sentence = one_sentence(ended[lines[name]])
        assert path.name in sentence or str(path) in sentence, (name, sentence)
        assert not (path / "report.html").exists()


@pytest.mark.long
def test_compare(run: Path, machine: Sandbox) -> None:
    same = one_sentence(machine.labkit("compare", str(run), str(run)))
    assert "is named twice: name two runs" in same
    other = machine.data / "datapaths" / "second"
    words = ("topology=veth,veth_bridge", "slices=2", "whole_runs=0", "--folder", str(other))
    assert machine.labkit("run", "datapaths", *words).returncode == 0
    done = machine.labkit("compare", str(run), str(other))
    assert done.returncode == 0, done.stderr
    assert "veth_bridge" in done.stdout
    ping = machine.data / "datapaths" / "third"
    assert machine.labkit("run", "datapaths", "protocol=ping", *SHORT, "--folder", str(ping)).returncode == 0
    assert one_sentence(machine.labkit("compare", str(run), str(ping)))


@pytest.mark.long
def test_report_command(run: Path, machine: Sandbox, project: Path) -> None:
    done = machine.labkit("report", str(run), cwd=project)
    assert done.returncode == 0, done.stderr
    page = run / "report.html"
    assert done.stdout == f"report: {page}\n"
    text = page.read_text()
    assert "<h1>Which is faster for TCP (throughput): veth or veth_bridge?</h1>" in text
    assert "Which container datapath is faster?" not in text
    again = machine.labkit("report", str(run), cwd=project)
    assert again.stdout == done.stdout


def in_a_shell(machine: Sandbox, script: str, *words: str) -> Done:
    """Return what `labkit shell` prints for commands on its standard input."""
    argv = [*machine.prefix, *LABKIT, "shell", *words]
    return subprocess.run(
        argv, input=script, cwd=machine.folder / "here", env=machine.environment | {"SHELL": "/bin/bash"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_shell(machine: Sandbox) -> None:
    before = machine.interfaces(), names_in_run()
    script = "ip -br addr; ping -c1 $LABKIT_SERVER; ip netns exec server0 ip -br addr; ip netns list; exit 3"
    done = in_a_shell(machine, script, "veth_bridge")
    assert done.returncode == 3, done.stderr
    assert "veth_bridge: you are in client0 (10.1.0.1); its server is 10.2.0.1" in done.stderr
    client, pinged, rest = re.split(r"(?s)(PING .*rtt[^\n]*\n)", done.stdout)
    assert "10.1.0.1/8" in client
    assert "1 received, 0% packet loss" in pinged
    assert "10.2.0.1/8" in rest
    assert {line.split()[0] for line in rest.splitlines()[-3:]} == {"client0", "server0", "between"}
    assert (machine.interfaces(), names_in_run()) == before
    assert machine.processes() == {}
    assert until(machine.only_namespace, 3)


def test_shell_takes_parameters(machine: Sandbox) -> None:
    script = "ip netns list; ip -6 -br addr show dev eth0; ip link show dev eth0"
    done = in_a_shell(machine, script, "veth", "pairs=2", "family=6", "mtu_bytes=9000")
    assert done.returncode == 0, done.stderr
    for word in ("client1", "server1", "fd00::1:1/64", "mtu 9000"):
        assert word in done.stdout


def test_shell_of_an_isolated_topology(machine: Sandbox) -> None:
    assert "macvlan passthru takes one device on a parent" in one_sentence(
        in_a_shell(machine, "", "macvlan_passthru")
    )


def test_json_rows_alone_on_standard_output(machine: Sandbox, tmp_path: Path) -> None:
    done = machine.labkit(
        "run", "datapaths", "topology=veth", *SHORT, "--json", "--folder", str(tmp_path / "run")
    )
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["ok"]
    assert all(line.startswith("labkit: ") for line in done.stderr.splitlines())
    assert f"labkit: the run is in {tmp_path / 'run'}" in done.stderr


def test_standard_output_in_another_encoding(run: Path, machine: Sandbox) -> None:
    """The results are printed in what the encoding has. Giving the command again prints the finished run."""
    words = ("run", "datapaths", *OF_RUN, "--folder", str(run))
    for encoding in ("latin-1", "ascii"):
        done = subprocess.run(
            [*machine.prefix, *LABKIT, *words],
            cwd=machine.folder / "here", env=machine.environment | {"PYTHONIOENCODING": encoding},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        out, err = done.stdout.decode(encoding), done.stderr.decode(encoding)
        assert done.returncode == 0, err
        assert "Traceback" not in err
        assert "Medians" in out


def test_run_outside_a_project_goes_to_current_data_folder(tmp_path: Path) -> None:
    with sandbox(tmp_path) as machine:
        del machine.environment["LABKIT_DATA"]
        done = machine.labkit("run", "datapaths", "topology=veth", "slices=1", "whole_runs=0")
        machine.data = tmp_path / "here" / "data"
        assert (
            f"labkit: the run is in {os.path.relpath(only_run(machine), tmp_path / 'here')}\n" in done.stderr
        )


PROGRESS = """
import json
from labkit.runner import run
seen = []
short = {"slices": 3, "whole_runs": 1, "rounds": 1, "pairs": [1], "duration_s": 1, "omit_s": 0}
run.measure("datapaths", {"topology": ["veth", "veth_bridge"], **short}, watch=seen.append)
print(json.dumps([event["what"] for event in seen if event["event"] == "progress"]))
"""


def test_progress_has_names_and_units(machine: Sandbox) -> None:
    done = machine.run(sys.executable, "-P", "-c", PROGRESS)
    assert done.returncode == 0, done.stderr
    building, slices, *whole = json.loads(done.stdout)
    assert building == "1 pair, round 1 of 1: building 3 arms"
    assert slices == "1 pair, round 1 of 1: 3 slices of 100 ms of each of 3 arms"
    told = {re.fullmatch(r"1 pair, round 1 of 1: (.+) for about \d+ s", one)[1] for one in whole}  # type: ignore[index]
    assert told == {"veth", "veth (again)", "veth_bridge"}
