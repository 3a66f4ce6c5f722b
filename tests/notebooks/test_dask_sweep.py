"""Sweeps on a real Dask cluster return every point although workers, the scheduler and the command line are killed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from dask_cluster import PATIENCE_S, RESOURCE, Cluster, Sweep
from executed_notebook import without_figures
from sandbox import Done, Sandbox, one_sentence, sandbox, until

from labkit import __version__
from labkit.analysis import load
from labkit.runner.cluster.request import Request, source_digest
from labkit.system import process

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "ethtool", "veth", "bridge")

SMALL = """
notebook: 01_datapaths
parameters: {topology: [veth, veth_bridge], pairs: [1], rounds: 2, slices: 3, whole_runs: 0}
grid:
  - protocol: [tcp]
    mtu_bytes: [1400, 1500]
"""
LONG = SMALL.replace("rounds: 2", "rounds: 40, half_width: 0").replace("1400, 1500", "1500")

# A point's process ends when its standard input closes, so that stays open.
RELAY = """
import subprocess, sys
argv = [sys.executable, "-m", "labkit.runner.cluster.point_process", sys.argv[1]]
with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as point:
    point.stdin.write(sys.argv[2] + "\\n")
    point.stdin.flush()
    point.wait()
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with sandbox(tmp_path_factory.mktemp("machine")) as made:
        sweeps = dict.fromkeys(("killed", "scheduler", "unreached"), SMALL)
        nic = LONG.replace("[veth, veth_bridge]", "[macvlan_bridge], parent: nic7")
        without_figures(made.project(**sweeps, long=LONG, nic=nic) / "notebooks/01_datapaths.ipynb")
        yield made


@pytest.fixture(scope="module")
def cluster(machine: Sandbox) -> Iterator[Cluster]:
    with Cluster(machine, "one") as made:
        for name in ("worker-1", "worker-2"):
            made.worker(name, *RESOURCE)
        yield made


def folder(machine: Sandbox, name: str) -> Path:
    [result] = (machine.data / "datapaths").glob(f"{name}-*")
    return result


def measuring(machine: Sandbox) -> list[int]:
    """Return the processes that measure for a worker: the point's, the notebook's, and the experiment's."""
    names = {"labkit.runner.cluster.point_process", "ipykernel_launcher", "labkit.measure.agent.main"}
    return machine.pids(lambda words: bool(names & set(words)))


@pytest.fixture(scope="module")
def killed(machine: Sandbox, cluster: Cluster) -> Done:
    """Kill one of a sweep's two workers when it has measured a part of its point. Return the sweep's output."""
    sweep = Sweep(machine, "killed", cluster.address)
    sweep.waits(r"point (\S+) is measured by ")
    data = {address: cluster.data(f"worker-{number}") for number, address in enumerate(cluster.workers, 1)}

    def begun() -> list[str]:
        return [address for address in data if list(data[address].glob(".cluster-*/*/rows/*.jsonl"))]

    assert until(begun, PATIENCE_S, 0.01), sweep.lines.read_text()
    cluster.workers[begun()[0]].kill()
    return sweep.done()


def test_all_points_after_a_killed_worker(killed: Done, machine: Sandbox) -> None:
    assert killed.returncode == 0, killed.stderr
    [(address, point)] = re.findall(
        r"^labkit: the worker (\S+) is lost; its point (\S+) is measured again$", killed.stderr, re.MULTILINE
    )
    places = re.findall(rf"^labkit: point {point} is measured by (\S+)$", killed.stderr, re.MULTILINE)
    assert places[0] == address
    assert address not in places[1:]
    assert re.search(
        rf"^labkit: point {point} is back from {places[-1]} \(\d of 2\)$", killed.stderr, re.MULTILINE
    )
    assert "Verdicts" in killed.stdout
    table = load.load(folder(machine, "killed"))
    assert set(table["mtu_bytes"]) == {1400, 1500}
    assert not table.attrs


def test_no_leftover_files_or_processes(killed: Done, machine: Sandbox, cluster: Cluster) -> None:
    assert {path.name for path in folder(machine, "killed").iterdir()} == {
        "tcp-1400", "tcp-1500", "sweep.json", "notebook.ipynb", "report.html",
    }  # fmt: skip
    assert until(lambda: not measuring(machine), 10), machine.processes()
    [living] = [
        cluster.data(f"worker-{number}")
        for number, worker in enumerate(cluster.workers.values(), 1)
        if worker.poll() is None
    ]
    assert list(living.iterdir()) == []
    _home, tmp, here = machine.empty
    assert [list(tmp.iterdir()), list(here.iterdir())] == [[], []]


def test_interrupt_releases_the_worker(killed: Done, machine: Sandbox, cluster: Cluster) -> None:
    """A new worker replaces the lost one and removes the files that it left on its disk."""
    lost = next(f"worker-{n}" for n, one in enumerate(cluster.workers.values(), 1) if one.poll() is not None)
    for living in (one for one in cluster.workers.values() if one.poll() is None):
        living.kill()
    assert list(cluster.data(lost).glob(".cluster-*"))
    # Moved, not copied: a folder's marker is not valid in a copy.
    cluster.data("worker-3").parent.mkdir(parents=True)
    cluster.data(lost).rename(cluster.data("worker-3"))
    address = cluster.worker("worker-3", *RESOURCE)
    left = set(cluster.data("worker-3").iterdir())
    sweep = Sweep(machine, "long", cluster.address)

    def begun() -> bool:
        return any(
            path.parents[2] not in left for path in cluster.data("worker-3").glob(".cluster-*/*/rows/*")
        )

    assert until(begun, PATIENCE_S), sweep.lines.read_text()
    assert len(list(cluster.data("worker-3").iterdir())) == 1
    os.kill(sweep.program.pid, signal.SIGINT)
    done = sweep.done(60)
    assert one_sentence(done, 130).startswith("interrupted: finished points are on disk")
    assert until(lambda: not measuring(machine), 30), machine.processes()
    assert until(lambda: not list(cluster.data("worker-3").iterdir()), 10)
    assert cluster.workers[address].poll() is None, cluster.log("worker-3")


@pytest.mark.exhaustive
def test_failed_point_is_one_sentence(killed: Done, machine: Sandbox, cluster: Cluster) -> None:
    sentence = one_sentence(Sweep(machine, "nic", cluster.address).done())
    assert sentence.startswith("point tcp-1500: parent=nic7: the machine has no such interface; it has lo")
    assert sentence.endswith(tuple(f"that was on {one}" for one in cluster.workers))
    assert str(folder(machine, "nic") / "tcp-1500" / "failed.ipynb") in sentence
    assert (folder(machine, "nic") / "tcp-1500" / "failed.ipynb").exists()


@pytest.mark.exhaustive
def test_dead_scheduler(killed: Done, machine: Sandbox, cluster: Cluster) -> None:
    """Finished points stay. test_sweep.py continues sweeps."""
    sweep = Sweep(machine, "scheduler", cluster.address)
    sweep.waits(r"point (\S+) is back from \S+ \(1 of 2\)")
    cluster.scheduler.kill()
    sentence = one_sentence(sweep.done(90))
    assert sentence.startswith(f"the Dask scheduler at {cluster.address} went away; finished points")
    assert len(list(machine.data.glob("datapaths/scheduler-*/*/notebook.ipynb"))) == 1
    assert until(lambda: not measuring(machine), PATIENCE_S), machine.processes()


def test_unreachable_scheduler(machine: Sandbox) -> None:
    """Either nothing listens at the address, or the listener never answers."""
    silent = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen(
        [*machine.prefix, *process.DIE_WITH_US, sys.executable, "-c", silent],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        addresses = ("tcp://127.0.0.1:9", f"127.0.0.1:{server.stdout.readline().strip()}", "nonsense://")
        sweeps = [
            Sweep(machine, name, address)
            for name, address in zip(("long", "nic", "unreached"), addresses, strict=True)
        ]
        for sweep, address in zip(sweeps, addresses, strict=True):
            sentence = one_sentence(sweep.done(60))
            assert sentence.startswith(f"no Dask scheduler answers at {address} within 10 s: start one with")
        server.communicate()


def test_process_of_a_point(machine: Sandbox, tmp_path: Path) -> None:
    """Text that would be code if it were pasted into the notebook arrives as text. Another labkit gets no answer."""
    cells = [
        {"cell_type": "code", "execution_count": None, "outputs": [], "source": text, "id": name,
         "metadata": {"tags": ["parameters"]} if name == "one" else {}}
        for name, text in {
            "one": 'word: str = ""\nfolder: str = ""',
            "two": "import pathlib\npathlib.Path(folder, 'word').write_text(word)",
        }.items()
    ]  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    text = json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})
    word = 'a"; raise SystemExit(1) #\n\\"""\nraise SystemExit(2)\n\u2028é'
    for version, says in (
        (__version__, '{"event":"done"}'),
        ("0.0.9", '{"event":"refused","text":"the worker has'),
    ):
        request = Request(version, source_digest(), "01_words", text, "one", {"word": word})
        argv = (sys.executable, "-c", RELAY, str(tmp_path), msgspec.json.encode(request).decode())
        done = machine.run(*argv, timeout=PATIENCE_S)
        assert says in done.stdout, done
        assert (tmp_path / "one" / "word").read_text() == word
