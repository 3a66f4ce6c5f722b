"""However and whenever an experiment ends, only its finished rows stay, and the run can be resumed."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import (
    LABKIT,
    ORDINARY,
    Process,
    Sandbox,
    also,
    machine_fixture,
    one_sentence,
    only_run,
    rows_on_disk,
    sandbox,
    until,
)

from labkit.common import run_folder

pytestmark = pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "veth", "macvlan")

# Points of about 1.8 s each: set-up, slices, and a whole run.
RUN = ("topology=macvlan_bridge", "pairs=1,2", "rounds=4", "slices=2", "duration_s=1", "omit_s=0")
POINTS = 8  # more than fit between the kills
KILLS = 3  # as root, and again rootless: each process of the chain once
STARTED_S = 60.0  # for an experiment; it takes 0.7 s on an idle machine, and more than 5 s beside four others
GONE_S = 5.0  # until processes have ended; it takes 0.1 s on an idle machine
SEED = int(os.environ.get("LABKIT_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 31)

machine = machine_fixture()


def program(words: list[str]) -> str:
    return Path(words[0]).name


# How to recognise each process of an experiment's chain.
CHAIN = {
    "labkit": lambda words: "labkit.cli" in words,
    "unshare": lambda words: program(words) == "unshare",
    "the experiment": lambda words: "labkit.measure.agent.main" in words and program(words) != "unshare",
}


@pytest.mark.alone
@pytest.mark.parametrize("words", [[], ORDINARY], ids=["root", "rootless"])
def test_killed_at_random_moments(words: list[str], tmp_path: Path) -> None:
    """A run is killed at random moments and resumed each time, as root and rootless."""
    rng = random.Random(f"{SEED} {words}")
    print(f"LABKIT_TEST_SEED={SEED}")
    with sandbox(tmp_path, words) as machine:
        before = machine.interfaces()
        folder = machine.data / "datapaths" / "killed"
        kept: dict[str, bytes] = {}
        moments = rng.sample([(number + rng.random()) * 1.2 for number in range(KILLS)], KILLS)
        # So that points finish on a busy machine, too.
        after_a_point = {moments.index(max(moments)), rng.randrange(KILLS)}
        for number, moment in enumerate(moments):
            process = machine.start(*LABKIT, "run", "datapaths", *RUN, "--folder", str(folder))
            if number in after_a_point:
                there = set(kept)
                watched(process, lambda there=there: set(rows_on_disk(folder)) - there, "a finished point")
            kill(machine, process, list(CHAIN)[number % 3], moment)
            machine.leaves_nothing(before, GONE_S)
            kept = gone_on(folder, kept)
        assert kept, "not one point was finished in between: the test kills too early to tell anything"
        assert len(kept) < POINTS, "all points were finished: the test kills too late"
        done = machine.labkit("run", "datapaths", *RUN, "--folder", str(folder), "--json", code=0)
        assert "finished" in run_folder.read_json(folder / "run.json")
        last = gone_on(folder, kept)
        assert len(last) == POINTS
        measured_now = {json.loads(line)["point"] for line in done.stdout.splitlines()}
        assert measured_now == {name.removesuffix(".jsonl") for name in last.keys() - kept.keys()}
        machine.leaves_nothing(before, GONE_S)


def kill(machine: Sandbox, process: Process, target: str, moment: float) -> None:
    """Kill one process of the chain after this many seconds, or as soon as it exists."""
    time.sleep(moment)
    result: list[int] = []
    watched(process, lambda: result.extend(machine.pids(CHAIN[target])) or result, target)
    os.kill(result[0], signal.SIGKILL)
    out, err = process.communicate(timeout=10)
    if target == "labkit":
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 2, (target, moment, out, err)
        assert "Traceback" not in err
        assert re.search(r"^labkit: the experiment's process was killed by signal 9; ", err, re.M), err


def watched(process: Process, condition: Callable[[], object], what: str) -> None:
    """Wait for a living process to do something. This may take long on a busy machine, but fails once the process has
    ended."""
    assert until(lambda: condition() or process.poll() is not None, STARTED_S, 0.005), f"no {what}"
    if not condition():
        out, err = process.communicate(timeout=10)
        pytest.fail(f"labkit ended with {process.returncode} before there was {what}: {out}{err}")


def gone_on(folder: Path, before: dict[str, bytes]) -> dict[str, bytes]:
    """Check that the rows on disk are complete and that earlier rows are unchanged."""
    now = rows_on_disk(folder)
    assert {name: now.get(name) for name in before} == before
    return now


SIGNALS = {"ctrl-c": signal.SIGINT, "interrupt": signal.SIGINT, "end": signal.SIGTERM}


@pytest.mark.parametrize("how", ["ctrl-c", *also("long", "interrupt", "end")])
def test_signal_ends_everything(how: str, machine: Sandbox) -> None:
    """Ctrl-C reaches the whole process group. A notebook or a script interrupts one process."""
    before = machine.interfaces()
    process = machine.start(*LABKIT, "run", "datapaths", "duration_s=30", "omit_s=0")
    assert until(lambda: machine.pids(lambda words: words[:2] == ["iperf3", "-J"]), 10)
    (os.killpg if how == "ctrl-c" else os.kill)(process.pid, SIGNALS[how])
    out, err = process.communicate(timeout=10)
    if SIGNALS[how] == signal.SIGINT:
        assert (process.returncode, out) == (130, "")
        assert "Traceback" not in err
        sentences = [line for line in err.splitlines() if line.startswith("labkit: interrupted: ")]
        assert sentences == [err.splitlines()[-1]]
    machine.leaves_nothing(before, GONE_S)


@pytest.mark.long
def test_closed_output_pipe(machine: Sandbox) -> None:
    """`labkit run … --json | head -1` ends without an error message."""
    before = machine.interfaces()
    line = f"{' '.join(LABKIT)} run datapaths {' '.join(RUN)} --json | head -c 10"
    done = machine.run("bash", "-c", f"set -o pipefail; {line}")
    assert (done.returncode, len(done.stdout)) == (0, 10), done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    machine.leaves_nothing(before, GONE_S)


@pytest.mark.long
def test_waiting_for_the_lock_can_be_interrupted(machine: Sandbox) -> None:
    first = machine.start(*LABKIT, "run", "datapaths", "duration_s=30", "omit_s=0")
    assert until(lambda: machine.pids(CHAIN["the experiment"]), 10)
    waits = [machine.start(*LABKIT, "run", "datapaths", "duration_s=1", "omit_s=0") for _ in range(2)]
    says = f"labkit: another measurement is using this machine (process {first.pid}: "
    for waiting in waits:
        assert waiting.stderr is not None
        words = next(line for line in waiting.stderr if "waiting for its end" in line)
        assert words.startswith(says)
        assert "labkit.cli run datapaths duration_s=30 omit_s=0" in words
    waits[0].send_signal(signal.SIGINT)
    waits[0].communicate(timeout=5)
    assert waits[0].returncode == 130
    assert waits[1].poll() is None
    first.kill()
    first.communicate(timeout=5)
    _out, err = waits[1].communicate(timeout=20)
    assert waits[1].returncode == 0, err


def test_finished_run_is_not_repeated(machine: Sandbox) -> None:
    words = ("topology=veth", "duration_s=1", "omit_s=0", "--json")
    first = machine.labkit("run", "datapaths", *words)
    folder = only_run(machine)
    before = rows_on_disk(folder)
    again = machine.labkit("run", "datapaths", *words, "--folder", str(folder))
    assert (first.returncode, again.returncode) == (0, 0)
    assert again.stdout == ""
    assert rows_on_disk(folder) == before
    other = machine.labkit("run", "datapaths", "topology=veth", "duration_s=2", "--folder", str(folder))
    assert one_sentence(other).endswith("holds a run with other parameters: name another folder")
