"""Faults of iperf3 or the disk: one sentence with the program's own words, exit code 2, and all other rows kept."""

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from sandbox import (
    LABKIT,
    Done,
    Row,
    Sandbox,
    also,
    machine_fixture,
    one_sentence,
    only_run,
    rows_on_disk,
    sandbox,
    shell_program,
    until,
)

from labkit.analysis import load

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "veth", "bridge"),
]

REAL = shutil.which("iperf3")
SHORT = ("topology=veth", "duration_s=1", "omit_s=0")

# What a fake iperf3 does; $real is the path of the real one.
VERSION = 'case " $* " in *" --version "*) exec $real --version ;; esac'
IS_CLIENT = 'case " $* " in *" -c "*) ;; *) exec $real "$@" ;; esac'
IS_SERVER = 'case " $* " in *" -s "*) ;; *) exec $real "$@" ;; esac'
LISTENS = (
    "exec python3 -c 'import socket, time; listening = socket.create_server((\"\", 5201)); time.sleep(600)'"
)

machine = machine_fixture()


def false_iperf3(machine: Sandbox, *lines: str) -> None:
    """Replace iperf3 on the machine by this shell script."""
    text = "\n".join([f"real={REAL}", *lines])
    machine.environment["PATH"] = shell_program(machine.folder / "bin", "iperf3", text)


def run(machine: Sandbox, *words: str) -> tuple[Done, list[Row]]:
    done = machine.labkit("run", "datapaths", *words, "--json")
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_generator_is_missing(machine: Sandbox) -> None:
    folder = machine.folder / "bin"
    folder.mkdir()
    for name in ("setpriv", "unshare", "nsenter", "mount", "ip", "ping", "ethtool", "lscpu", "uname", "sh"):
        if result := shutil.which(name):
            (folder / name).symlink_to(result)
    machine.words = [str(Path(shutil.which("env") or "env")), f"PATH={folder}"]
    says = {
        "tcp": "the program iperf3 is not installed (without it: no TCP or UDP traffic",
        "udp_rr": "the program sockperf is not installed (without it: no requests and responses",
        "http": "the program wrk is not installed (without it: no HTTP requests",
    }
    lines = {
        f"run datapaths {' '.join(SHORT)} protocol={protocol} --json": says[protocol] for protocol in says
    }
    for line, done in machine.commands(*lines).items():
        assert one_sentence(done).startswith(lines[line]), line
        assert done.stdout == ""


def test_ping_needs_no_iperf3(machine: Sandbox) -> None:
    false_iperf3(machine, "exit 1")
    done, rows = run(machine, *SHORT, "protocol=ping")
    assert done.returncode == 0, done.stderr
    assert [(row["status"], row["iperf3"]) for row in rows] == [("ok", None)]


def test_iperf3_that_cannot_be_used(machine: Sandbox) -> None:
    false_iperf3(machine, "echo no such library >&2; exit 127")
    done, rows = run(machine, *SHORT)
    assert one_sentence(done).startswith("iperf3 ended with 127: no such library")
    assert rows == []


LATE = "iperf3 did not end 5 s after its time"
# What iperf3 does, and the reason of the row.
FAULTS = {
    "dies": ([IS_CLIENT, "echo 'Segmentation fault' >&2; exit 139"], "iperf3 ended with 139: Segmentation fault"),
    "refused": (
        [IS_CLIENT, 'exec $real $(echo "$*" | sed "s/-p 5201/-p 5999/")'],
        "iperf3: unable to connect to server: Connection refused",
    ),
    "the server dies": (
        [IS_SERVER, "echo 'no memory' >&2; exit 1"],
        "the iperf3 server ended before it listened: iperf3 ended with 1: no memory",
    ),
    "the server never listens": ([IS_SERVER, "exec sleep 600"], "did not listen within 10 s"),
    "the server never answers": ([IS_SERVER, LISTENS], LATE),
    "the client never ends": ([IS_CLIENT, "exec sleep 600"], LATE),
    "the client ignores an interrupt": ([IS_CLIENT, "trap '' INT", "while :; do sleep 1; done"], LATE),
}  # fmt: skip


@pytest.mark.long
def test_iperf3_fails(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All faults at once, each in its own sandbox, because most of them only wait."""
    with contextlib.ExitStack() as stack:
        started = {}
        begun_s = time.monotonic()
        for name, (lines, _reason) in FAULTS.items():
            machine = stack.enter_context(sandbox(tmp_path_factory.mktemp("machine")))
            false_iperf3(machine, VERSION, *lines)
            started[name] = machine, machine.start(*LABKIT, "run", "datapaths", *SHORT, "--json")
        for name, (machine, process) in started.items():
            out, err = process.communicate(timeout=60)
            assert time.monotonic() - begun_s < 50, name
            assert until(lambda machine=machine: not machine.processes(), 3), name  # type: ignore[misc]
            [row] = [json.loads(line) for line in out.splitlines()]
            assert (row["status"], row["method"], row["throughput_bps"]) == ("failed", "whole", None), name
            assert FAULTS[name][1] in row["reason"]
            assert "\n" not in row["reason"]
            assert one_sentence(Done([], process.returncode, out, err)) == f"veth: {row['reason']}"
            assert list(rows_on_disk(only_run(machine))) == ["1-r0.jsonl"]


# Messages of the killed end and of the remaining one. Which of them arrives first is random.
WORDS_OF_A_KILL = [
    "iperf3 was ended by SIGKILL", "iperf3 server: the client has unexpectedly closed the connection",
    "iperf3: control socket has closed unexpectedly", "iperf3: unable to write to stream socket",
    "iperf3: unable to receive results", "iperf3: unable to send",
]  # fmt: skip


@pytest.mark.parametrize(
    ("end", "method"),
    [("-s", "slice"), *also("long", ("-c", "whole"))],
)
def test_killed_iperf3_end(end: str, method: str, machine: Sandbox) -> None:
    """The rows of the other arms are kept, and the run continues with the remaining arms."""
    words = ["topology=veth,veth_bridge", "duration_s=1", "omit_s=0", "seed=3"]
    words += ["slices=10", "whole_runs=0"] if method == "slice" else []
    process = machine.start(*LABKIT, "run", "datapaths", *words, "--json")
    flows = 3 if method == "slice" else 1
    assert until(lambda: len(iperf3(machine, "-c")) == len(iperf3(machine, "-s")) == flows, 20)
    time.sleep(0.3)
    os.kill(iperf3(machine, end)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    rows = [json.loads(line) for line in out.splitlines()]
    sentence = one_sentence(Done(words, process.returncode, out, err))
    [failed] = [row for row in rows if row["status"] == "failed"]
    assert failed["method"] == method
    assert sentence == f"{failed['arm']}: {failed['reason']}"
    assert any(words in failed["reason"] for words in WORDS_OF_A_KILL), failed["reason"]
    others = {row["arm"] for row in rows if row["status"] == "ok"}
    assert others | {failed["arm"]} == {"veth", "veth (again)", "veth_bridge"}
    assert len(others) == (2 if method == "whole" else len(others))


def iperf3(machine: Sandbox, end: str) -> list[int]:
    return machine.pids(lambda words: words[0] == "iperf3" and end in words)


@pytest.mark.long
def test_failed_baseline_is_one_sentence(machine: Sandbox) -> None:
    """The table also handles a comparison without a baseline."""
    false_iperf3(machine, VERSION, IS_CLIENT, "exit 1")
    done = machine.labkit("run", "datapaths", "topology=veth,veth_bridge", "duration_s=1", "omit_s=0")
    assert "iperf3 ended with 1" in one_sentence(done)
    assert "failed" in done.stdout


FULL = """
mount -t tmpfs -o size=$1 none "$2" || exit 99
shift
folder=$1
shift
"$@"
code=$?
cp -r "$folder"/. "$folder.copy"
exit $code
"""


@pytest.mark.long
def test_full_disk_is_one_sentence(machine: Sandbox, tmp_path: Path) -> None:
    machine.data.mkdir()
    words = ["unshare", "--mount", "sh", "-c", FULL, "sh", "120k", str(machine.data)]
    parameters = ["topology=veth", "rounds=50", "slices=3", "whole_runs=0"]
    done = machine.run(*words, *LABKIT, "run", "datapaths", *parameters, "--json")
    sentence = one_sentence(done)
    assert "is full: free some space and repeat the command; finished rows are kept" in sentence
    report = {json.loads(line)["point"] for line in done.stdout.splitlines()}
    [folder] = (tmp_path / "data.copy" / "datapaths").iterdir()
    kept = rows_on_disk(folder)
    assert 3 <= len(kept) < 50
    assert report >= {name.removesuffix(".jsonl") for name in kept}
    assert len(load.load(folder)) == sum(len(content.splitlines()) for content in kept.values())


def test_unwritable_folder_is_one_sentence(machine: Sandbox) -> None:
    machine.data.write_text("a file where the folder should be")
    done, _rows = run(machine, *SHORT)
    assert one_sentence(done).startswith("cannot write ")
