"""Sweeps that are killed in the middle of a point, or interrupted, resume without measuring finished points again."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from sandbox import LABKIT, Done, Sandbox, machine_fixture, one_sentence, rows_on_disk, until

from labkit.analysis import load

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "ethtool", "veth", "bridge")

ABOUT = "Which of the two is faster on this machine?"
SMALL = f"""# {ABOUT}
notebook: 01_datapaths
parameters: {{topology: [veth, veth_bridge], pairs: [1], rounds: 3, slices: 3, whole_runs: 0}}
grid:
  - protocol: [tcp, udp]
"""
SWEEP = (*LABKIT, "sweep", "params/small.yaml")


def is_kernel(words: list[str]) -> bool:
    return "ipykernel_launcher" in words


machine = machine_fixture("module", sweeps={"small": SMALL})


def project(machine: Sandbox) -> Path:
    return machine.folder / "project"


def folder(machine: Sandbox) -> Path:
    return machine.swept("datapaths", "small")


def points(machine: Sandbox) -> dict[str, dict[str, bytes]]:
    """Return the rows on disk, by point of the sweep."""
    result = machine.data.glob("datapaths/small-*/*/run.json")
    return {path.parent.name: rows_on_disk(path.parent) for path in result}


@pytest.fixture(scope="module")
def killed(machine: Sandbox) -> dict[str, dict[str, bytes]]:
    """Return the rows on disk after a sweep was killed with one point finished and another begun."""
    before = machine.interfaces()
    process = machine.start(*SWEEP, cwd=project(machine))
    assert until(lambda: len(points(machine)) == 2 and all(points(machine).values()), 60, 0.05), points(
        machine
    )
    assert machine.pids(is_kernel)
    process.kill()
    process.communicate()
    assert until(lambda: not machine.processes(), 3), machine.processes()
    assert until(machine.only_namespace, 3)
    assert machine.interfaces() == before
    return points(machine)


@pytest.fixture(scope="module")
def done(machine: Sandbox, killed: dict[str, dict[str, bytes]]) -> str:
    """Return what the same command prints after resuming the sweep to its end."""
    done = machine.run(*SWEEP, cwd=project(machine))
    assert done.returncode == 0, done.stderr
    assert "1 of 2 points were measured before; continuing in " in done.stderr
    return done.stdout


def test_finished_points_are_not_repeated(
    killed: dict[str, dict[str, bytes]], done: str, machine: Sandbox
) -> None:
    now = points(machine)
    assert (
        sorted(len(rows) for rows in killed.values()) < [3, 3] == sorted(len(rows) for rows in now.values())
    )
    for point, rows in killed.items():
        assert {name: now[point][name] for name in rows} == rows


def test_no_leftover_files_or_processes(
    killed: dict[str, dict[str, bytes]], done: str, machine: Sandbox
) -> None:
    assert {path.name for path in folder(machine).iterdir()} == {
        "tcp", "udp", "sweep.json", "notebook.ipynb", "report.html",
    }  # fmt: skip
    assert list(folder(machine).rglob(".*")) == []
    home, tmp, here = machine.empty
    assert [list(tmp.iterdir()), list(here.iterdir())] == [[], []]
    # IPython always creates a profile for itself.
    assert {path.name for path in home.iterdir()} <= {".ipython"}


def test_the_report_has_all_points(done: str, machine: Sandbox) -> None:
    assert (
        done.splitlines()[-1]
        == f"report: {os.path.relpath(folder(machine) / 'report.html', project(machine))}"
    )
    assert "Verdicts" in done
    table = load.load(folder(machine))
    assert set(table["protocol"]) == {"tcp", "udp"}
    assert "unfinished" not in table.attrs
    page = (folder(machine) / "report.html").read_text()
    for protocol in ("TCP", "UDP"):  # in the panels' titles: a busy machine may leave nothing to conclude
        assert re.search(rf"{protocol} (·|\\u00b7) MTU 1500", page), protocol
    assert re.search("<h1>Which (of . arms )?is faster for TCP and UDP \\(throughput\\).*\\?</h1>", page)
    assert f'<p class="about">{ABOUT}</p>' in page


def test_finished_sweep_measures_nothing(done: str, machine: Sandbox) -> None:
    before = points(machine), {path: path.stat().st_mtime_ns for path in machine.data.rglob("run.json")}
    begin = time.monotonic()
    again = machine.run(*SWEEP, cwd=project(machine))
    assert again.returncode == 0, again.stderr
    assert "all 2 points were measured before; to measure anew, remove " in again.stderr
    assert again.stdout == done
    assert (
        points(machine),
        {path: path.stat().st_mtime_ns for path in machine.data.rglob("run.json")},
    ) == before
    assert time.monotonic() - begin < 20


def test_report_takes_a_sweep(done: str, machine: Sandbox) -> None:
    report = machine.labkit("report", str(folder(machine)), cwd=project(machine))
    assert report.returncode == 0, report.stderr
    assert report.stdout == done.splitlines()[-1] + "\n"


@pytest.mark.exhaustive  # test_sweep_file.py has which points are reused
def test_finished_points_of_another_sweep_are_reused(done: str, machine: Sandbox) -> None:
    (project(machine) / "params" / "same.yaml").write_text(SMALL)
    same = machine.labkit("sweep", "params/same.yaml", "--reuse", str(folder(machine)), cwd=project(machine))
    assert same.returncode == 0, same.stderr
    assert re.search(r"taken from .*: 2 of 2 points", same.stderr), same.stderr
    assert [rows_on_disk(machine.swept("datapaths", "same") / name) for name in ("tcp", "udp")] == [
        rows_on_disk(folder(machine) / name) for name in ("tcp", "udp")
    ]
    words = ("sweep", "params/same.yaml", "--reuse", str(project(machine)))
    assert "is not the folder of a sweep" in one_sentence(machine.labkit(*words, cwd=project(machine)))


def test_interrupt_and_resume(machine: Sandbox, done: str) -> None:
    """Ctrl-C reaches labkit, which ends the notebook. Finished points stay."""
    path = project(machine) / "params" / "other.yaml"
    path.write_text(SMALL.replace("rounds: 3", "rounds: 20, half_width: 0"))
    process = machine.start(*LABKIT, "sweep", "params/other.yaml", cwd=project(machine))
    assert until(lambda: list(machine.data.glob("datapaths/other-*/*/rows/*.jsonl")), 60)
    os.killpg(process.pid, signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("labkit: interrupted: finished points are on disk")
    assert until(lambda: not machine.processes(), 3), machine.processes()
    assert list(machine.folder.joinpath("tmp").iterdir()) == []


@pytest.mark.exhaustive  # test_dask_sweep.py kills a worker, and test_notebook_kernel.py a notebook's kernel
def test_killed_notebook_process(machine: Sandbox, done: str) -> None:
    path = project(machine) / "params" / "other.yaml"
    path.write_text(SMALL.replace("rounds: 3", "rounds: 20, half_width: 0"))
    process = machine.start(*LABKIT, "sweep", "params/other.yaml", cwd=project(machine))

    def measured() -> dict[Path, bytes]:
        # Without the hidden file of a row that is being written.
        files = machine.data.glob("datapaths/other-*/*/rows/[!.]*.jsonl")
        return {path: path.read_bytes() for path in files}

    before = measured()
    assert until(lambda: len(measured()) > len(before), 60)
    kept = measured()
    os.kill(machine.pids(is_kernel)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=20)
    assert "the notebook's process died; finished rows are kept" in one_sentence(
        Done([], process.returncode, out, err)
    )
    assert until(lambda: not machine.processes(), 3), machine.processes()
    assert kept.items() <= measured().items()
