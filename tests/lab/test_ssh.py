"""Experiments through a real sshd: rows and artefacts come back, nothing stays behind, and every fault is one
sentence."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox import LABKIT, ORDINARY, Done, Process, one_sentence, only_run, rows_on_disk, until
from sshd import HOLD, REAL, SSHD, START, Lab, lab

from labkit.common import run_folder
from labkit.system import machine as this

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("root", "sshd", "user namespaces", "iperf3", "ip", "ping", "veth"),
]

SHORT = ("where=ssh:lab", "topology=veth", "duration_s=1", "omit_s=0")
# each point takes about a second
LONG = ("where=ssh:lab", "topology=veth", "pairs=1,2", "rounds=6", "slices=2", "whole_runs=0")
POINTS = 12


COMPILED: list[Path] = []  # what labkit brought to the first machine, with Python's compiled files


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Lab]:
    """Return a machine to which labkit has brought nothing yet."""
    with lab(tmp_path) as made:
        yield made


@pytest.fixture
def machine(empty: Lab) -> Lab:
    """Return a machine that has labkit, if another one got it before: each would compile all of it again."""
    for brought in COMPILED:
        shutil.copytree(brought, empty.cache)
    return empty


def nothing_runs_there(machine: Lab, within_s: float = 20) -> None:
    assert until(lambda: not machine.over_there() and not machine.sessions(), within_s), machine.over_there()
    assert list((machine.cache / "run").iterdir()) == []


def test_run_through_ssh(empty: Lab) -> None:
    """The login shell prints text and the home folder has its own random.py. labkit is copied once, and files come
    back."""
    (empty.home / ".bashrc").write_text("echo Welcome; echo Welcome >&2\n")
    (empty.home / "random.py").write_text("raise SystemExit('not the random that was meant')\n")
    begun = time.time()
    done = empty.labkit("run", "datapaths", *SHORT, "--json", code=0)
    assert "labkit: copying labkit, " in done.stderr
    [row] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (row["status"], row["where"], row["git_revision"]) == ("ok", "ssh:lab", this.git_revision())
    assert row["throughput_bps"] > 1e6
    folder = only_run(empty)
    assert row["run"] == folder.name
    assert run_folder.read_rows(folder) == [row]
    assert (folder / "artefacts" / "1-r0" / "veth.json.gz").stat().st_mtime > begun
    environment = run_folder.read_json(folder / "environment.json")
    assert environment["machine"].items() <= row.items()
    nothing_runs_there(empty)
    brought = empty.digests()
    assert ["labkit", "studies"] in brought.values()
    again = empty.labkit("run", "datapaths", *SHORT, "--json", code=0)
    assert "copying" not in again.stderr
    assert empty.digests() == brought
    nothing_runs_there(empty)
    assert sorted(path.name for path in empty.home.iterdir()) == [".bashrc", ".cache", "random.py"]
    COMPILED.append(empty.cache)


def test_doctor_through_ssh_removes_unused_files(machine: Lab) -> None:
    """This includes the rest of an interrupted removal, but no files of others."""
    old = {"0" * 16: False, ".new-abc": False, "no-kvm-6.1": True, ".old-" + "1" * 16: False, "2" * 16: True}
    for name in old:
        (machine.cache / name / "labkit").mkdir(parents=True)
        if name[0] != "2" and not name.startswith(".old-"):
            os.utime(machine.cache / name, (0, 0))
    answer = json.loads(machine.labkit("doctor", "--where", "ssh:lab", "--json", code=0).stdout)
    assert answer["machine"]["kernel"] == os.uname().release
    assert any(one["name"] == "veth" and one["available"] for one in answer["capabilities"])
    assert {name: (machine.cache / name).exists() for name in old} == old
    assert not (machine.cache / (".old-" + "0" * 16)).exists()


def test_concurrent_runs(empty: Lab) -> None:
    """Both copy the same files to an empty home. The lock of the remote machine lets one measure at a time.

    The user's configuration forwards a port, which only one connection could do.
    """
    holder = empty.start(sys.executable, "-c", HOLD)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    both = [empty.start(*LABKIT, "run", "datapaths", *SHORT, "--json") for _ in range(2)]
    for process in both:
        assert process.stderr is not None
        waits = f"on lab: another measurement is using this machine (process {holder.pid}: "
        assert any(waits in line for line in process.stderr)
    holder.kill()
    holder.communicate()
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert json.loads(out)["status"] == "ok"
    assert sorted(empty.digests().values()).count(["labkit", "studies"]) == 1
    nothing_runs_there(empty)


def test_remote_without_root(machine: Lab) -> None:
    machine.says("python3", f'exec {" ".join(ORDINARY)} {REAL} "$@"')
    done = machine.labkit("run", "datapaths", *SHORT, "--json", code=0)
    assert "labkit: on lab: not root, so everything runs in a user namespace: " in done.stderr
    assert json.loads(done.stdout)["status"] == "ok"
    assert (only_run(machine) / "artefacts" / "1-r0" / "veth.json.gz").exists()
    nothing_runs_there(machine)


REFUSED = {
    "stranger": "Host key verification failed",
    "denied": "Permission denied (publickey)",
    "gone": "connect to host 127.0.0.1 port 23: Connection refused",
}


def test_live_topology_through_ssh(machine: Lab) -> None:
    code = """
from labkit import live
with live.build("veth", where="ssh:lab") as net:
    with net.monitor("server0:eth0", protocol="icmp") as seen:
        print(net.client0.run("ping", "-c1", net.server0.address))
    print(net, [one.stack for one in seen.packets])
"""
    done = machine.run(sys.executable, "-c", code, code=0)
    for words in ("1 received, 0% packet loss", "ICMP echo reply", "peer server0/eth0"):
        assert words in done.stdout
    nothing_runs_there(machine)


def test_connection_failure(empty: Lab) -> None:
    """The message has ssh's own words and a remedy. An unknown host stays unknown."""
    known = (empty.there / "known").read_bytes()
    lines = [f"run datapaths where=ssh:{name} {' '.join(SHORT[1:])}" for name in REFUSED]
    ended = empty.commands(*lines).values()
    for (name, words), done in zip(REFUSED.items(), ended, strict=True):
        sentence = one_sentence(done)
        assert sentence.startswith(f"ssh to {name} ended with 255: ")
        assert words in sentence
        assert sentence.endswith(f"; `ssh {name} true` must work without a prompt: connect once by hand")
    assert (empty.there / "known").read_bytes() == known
    assert not empty.cache.exists()


# A fake python3 on the remote side; the real one gets this first.
OLD = "import sys; sys.version_info = (3, 9, 2, 'final', 0)"
OTHER = "import sysconfig; sysconfig.get_config_vars()['SOABI'] = 'cpython-399-riscv64-linux-gnu'"
LACKS = {
    "old": (f'exec {REAL} -c "{OLD}; $2"', "Python on lab is 3.9, and labkit needs 3.11 or newer: "),
    "none": ("echo sh: python3: no >&2; exit 127", "there is no python3 on lab (ended with 127: sh: python3: no)"),
    "other": (
        f'exec {REAL} -I -c "{OTHER}; $2"',
        "on lab Python 3.11 (cpython-399-riscv64-linux-gnu) has no msgspec, and the one from here is for cpython-",
    ),
}  # fmt: skip


def test_missing_program_on_the_remote(machine: Lab) -> None:
    for script, words in LACKS.values():
        machine.says("python3", script)
        sentence = one_sentence(machine.labkit("run", "datapaths", *SHORT))
        assert sentence.startswith(words), sentence
    assert 'python3 -m pip install "msgspec>=' in sentence
    machine.says("python3", f'PATH={machine.there / "few"} exec {sys.executable} "$@"')
    (machine.there / "few").mkdir()
    for name in ("setpriv", "unshare", "nsenter", "mount", "ip", "ping", "ethtool", "lscpu", "uname"):
        (machine.there / "few" / name).symlink_to(str(shutil.which(name)))
    sentence = one_sentence(machine.labkit("run", "datapaths", *SHORT))
    assert sentence.startswith(
        "on lab: the program iperf3 is not installed (without it: no TCP or UDP traffic"
    )
    machine.says("python3", f'exec {REAL} "$@"')
    shutil.rmtree(machine.cache)
    machine.cache.parent.joinpath("labkit").write_text("a file where the folder should be")
    sentence = one_sentence(machine.labkit("run", "datapaths", *SHORT))
    assert sentence.startswith("on lab: ")
    assert sentence.endswith("cannot be written: Not a directory")


def test_remote_with_another_version(machine: Lab) -> None:
    assert machine.labkit("doctor", "--where", "ssh:lab").returncode == 0
    [digest] = [digest for digest, packages in machine.digests().items() if "labkit" in packages]
    (machine.cache / digest / "labkit" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    sentence = one_sentence(machine.labkit("run", "datapaths", *SHORT))
    assert sentence.startswith("on lab labkit 0.0.9 answers, but this is ")
    shutil.rmtree(machine.cache / digest)
    assert machine.labkit("doctor", "--where", "ssh:lab").returncode == 0


def begun(machine: Lab, folder: Path, points: int = 1) -> Process:
    """Start a run and wait until it has finished some points and is in the next."""
    process = machine.start(*LABKIT, "run", "datapaths", *LONG, "--folder", str(folder))
    if not until(lambda: len(list(folder.glob("rows/*.jsonl"))) >= points, 120):
        process.kill()
        raise AssertionError(process.communicate())
    return process


def lost(machine: Lab, process: Process, folder: Path, within_s: float) -> str:
    """Return the sentence with which the run ends. It must end in time and keep its rows."""
    before = rows_on_disk(folder)
    started = time.monotonic()
    out, err = process.communicate(timeout=within_s + 60)
    assert time.monotonic() - started < within_s
    sentence = one_sentence(Done([], process.returncode, out, err))
    assert sentence.endswith(
        f"; finished rows are kept; repeat the command with --folder {folder} to continue"
    )
    assert rows_on_disk(folder).items() >= before.items()
    return sentence


def test_broken_connection_and_resume(machine: Lab) -> None:
    folder = machine.data / "datapaths" / "broken"
    process = begun(machine, folder, 2)
    [pid] = machine.sessions()
    os.kill(pid, signal.SIGKILL)
    sentence = lost(machine, process, folder, 20)
    assert sentence.startswith("the experiment's process lost its connection to lab: ssh ended with 255: ")
    assert "closed" in sentence or "broken" in sentence.lower()
    nothing_runs_there(machine)
    kept = rows_on_disk(folder)
    assert 2 <= len(kept) < POINTS
    done = machine.labkit("run", "datapaths", *LONG, "--folder", str(folder), "--json", code=0)
    after = rows_on_disk(folder)
    assert {name: after[name] for name in kept} == kept
    measured_now = {json.loads(line)["point"] for line in done.stdout.splitlines()}
    assert measured_now == {name.removesuffix(".jsonl") for name in after.keys() - kept.keys()}
    assert len(after) == POINTS
    assert {path.name for path in (folder / "artefacts").iterdir()} == {Path(name).stem for name in after}


def test_silent_connection(machine: Lab) -> None:
    """Nothing signals the loss: both sides detect it by themselves, and the remote side stops working."""
    folder = machine.data / "datapaths" / "silent"
    process = begun(machine, folder)
    [pid] = machine.sessions()
    os.kill(pid, signal.SIGSTOP)
    try:
        sentence = lost(machine, process, folder, 40)
        assert "not responding" in sentence
        assert until(lambda: not machine.over_there(), 60), machine.over_there()
    finally:
        os.kill(pid, signal.SIGKILL)
    nothing_runs_there(machine)


def test_killed_programs(machine: Lab) -> None:
    folder = machine.data / "datapaths" / "killed"
    for which, says in (
        ("labkit", ""),
        ("ssh", "lost its connection to lab: ssh was killed by signal 9"),
        ("the experiment", "the experiment's process on lab was killed by signal 9; "),
    ):
        process = begun(machine, folder, len(rows_on_disk(folder)) + 1)
        if which == "labkit":
            process.kill()
            process.communicate()
        else:
            ssh = machine.pids(lambda words: words[1:2] == ["-F"])
            agents = machine.pids(lambda words: words[1:] == ["-P", "-m", "labkit.measure.agent.main"])
            os.kill((ssh if which == "ssh" else agents)[0], signal.SIGKILL)
            assert says in lost(machine, process, folder, 20)
        nothing_runs_there(machine)


TWO_ENDS = """
ip netns add web; ip netns add cli
ip -n web link add eth0 up type veth peer name eth0 netns cli; ip -n cli link set eth0 up
ip -n web address add 10.77.0.2/24 dev eth0; ip -n cli address add 10.77.0.3/24 dev eth0
ip netns exec web ethtool -K eth0 tso off gso off
"""


@pytest.mark.exhaustive  # test_ends_on_two_machines has the same commands
@pytest.mark.needs("ethtool")
def test_ends_on_another_machine(machine: Lab) -> None:
    """`check`, `draw`, `clone` and a run between ends that only the other machine sees, and sentences for mistakes."""
    machine.run("ssh", "lab", TWO_ENDS, code=0)
    ends = ("ssh:lab/netns:web", "ssh:lab/netns:cli")
    done = machine.labkit("check", *ends, "--json", code=0)
    report = json.loads(done.stdout)
    assert report["findings"][0]["cause"] == "offload off"
    assert report["paths"][0]["tcp"]
    done = machine.labkit("draw", *ends, "--json", code=0)
    assert [step["namespace"] for step in json.loads(done.stdout)["forward"]] == ["netns:web", "netns:cli"]
    done = machine.labkit("clone", *ends, code=0)
    (machine.folder / "copy.yaml").write_text(done.stdout)
    done = machine.labkit("draw", str(machine.folder / "copy.yaml"), code=0)
    network = "topology=existing:netns:web+netns:cli"
    [row] = machine.rows(network, "where=ssh:lab", *SHORT[2:], "rounds=1", "--yes")
    assert (row["status"], row["where"]) == ("ok", "ssh:lab")
    assert row["throughput_bps"] > 1e6
    nothing_runs_there(machine)
    refused = {
        f"check {ends[0]} ssh:lab/netns:none": "on lab: netns:none does not exist",
        "draw ssh:lab ssh:lab": "names a machine only",
        f"check {' '.join(ends)} --load": "add --yes",
        "check ssh:-x/host ssh:-x/netns:a": "a machine has the form",
    }
    for line, done in machine.commands(*refused).items():
        assert refused[line] in one_sentence(done), line


# Two machines that see no process and no name of others, each with an end behind it; this one routes between them.
TWO_MACHINES = """
echo 1 >/proc/sys/net/ipv4/ip_forward
for each in a.1.web.$1 b.2.cli.$2; do
    set -- $(echo $each | tr . ' ')
    in="nsenter -t $4 -n"
    ip link add to-$1 up type veth peer name nic0 netns $4 && ip address add 10.9.$2.1/24 dev to-$1
    $in ip address add 10.9.$2.2/24 dev nic0; $in ip link set nic0 up; $in ip link set lo up
    $in ip route add default via 10.9.$2.1; $in sysctl -qw net.ipv4.ip_forward=1
    ip route add 10.77.$2.0/24 via 10.9.$2.2
    until ssh $1 true 2>/dev/null; do sleep 0.1; done
    ssh $1 "ip netns add $3; ip link add v-$3 up type veth peer name eth0 netns $3
        ip address add 10.77.$2.1/24 dev v-$3; ip -n $3 link set eth0 up
        ip -n $3 address add 10.77.$2.2/24 dev eth0; ip -n $3 route add default via 10.77.$2.1"
done
"""
HOSTS = """
Host a b
    HostKeyAlias known
    User root
    IdentityFile {0}/user
    IdentitiesOnly yes
    UserKnownHostsFile {0}/known
Host a
    HostName 10.9.1.2
Host b
    HostName 10.9.2.2
"""
ALONE = ("unshare", "--kill-child", "--mount", "--pid", "--fork", "--mount-proc")
TRANSIT = ("ssh:a/netns:web", "ssh:b/netns:cli")
BETWEEN = f"topology=existing:{TRANSIT[0]}+{TRANSIT[1]}"
STATE = """for n in '' $(ls /run/netns); do
    ${n:+ip netns exec $n} sh -c 'ip -d link; ip -4 address; ip route; nft list ruleset; tc qdisc
        grep -rs . /proc/sys/net/ipv4/conf'
done"""


@pytest.fixture
def two(machine: Lab) -> Iterator[Lab]:
    with (machine.there / "client").open("a") as client, (machine.there / "server").open("a") as server:
        client.write(HOSTS.format(machine.there))
        server.write("ListenAddress 0.0.0.0:22\n")
    argv = [SSHD, "-D", "-E", str(machine.there / "others"), "-f", str(machine.there / "server")]
    made = [machine.start(*ALONE, "--net", "sh", "-c", START, "sh", *argv) for _ in "ab"]
    try:
        machine.run("sh", "-c", TWO_MACHINES, "sh", *(str(one.pid) for one in made), code=0)
        yield machine
    finally:
        for one in made:
            one.kill()
            one.communicate()


def checked(machine: Lab, *words: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    done = machine.labkit("check", *words, "--json", code=0)
    report = json.loads(done.stdout)
    # What this test's own loads lost at a busy receiver is counted as long as its namespace exists.
    return [one for one in report["findings"] if one["cause"] != "full socket buffer"], report


def everything(machine: Lab) -> list[str]:
    return [machine.run("ssh", each, STATE).stdout for each in "ab"]


@pytest.mark.needs("nft", "ethtool")
def test_ends_on_two_machines(two: Lab) -> None:
    """Each machine tells its half; packets and a load pass between both, and what is wrong has its machine's name."""
    idle, before = set(two.processes()), everything(two)
    _findings, report = checked(two, *TRANSIT, "--load", "--seconds", "1", "--yes")
    [path] = report["paths"]
    assert path["interfaces"] == [
        "ssh:a/netns:web eth0", "ssh:a/host v-web", "ssh:a/host nic0", "the network between",
        "ssh:b/host nic0", "ssh:b/host v-cli", "ssh:b/netns:cli eth0",
    ]  # fmt: skip
    assert path["forward"] == path["back"] == {"icmp": "301/301", "udp": "301/301", "mtu_bytes": 1500}
    assert path["tcp"]
    assert all(one["received_bps"] > 1e6 for one in report["loads"]), report["loads"]
    state = json.loads(two.labkit("draw", *TRANSIT, "--json").stdout)
    steps = [f"{one['namespace']} {one['interface']}" for one in state["forward"]]
    assert steps == [one for one in path["interfaces"] if one != "the network between"]
    assert everything(two) == before
    # The same path as an arm, beside a program at the usual port, and ends of this machine and another one.
    assert two.run("ssh", "b", "ip netns exec cli iperf3 -s -D").returncode == 0
    [row] = two.rows(BETWEEN, "duration_s=1", "omit_s=0", "--yes")
    [busy] = two.pids(lambda words: words[:2] == ["iperf3", "-s"])
    os.kill(busy, signal.SIGKILL)
    assert (row["status"], row["where"], row["peer"], row["nodes"]) == ("ok", "ssh:a", "ssh:b", "two"), row
    assert row["throughput_bps"] > 1e6
    mixed = "topology=existing:host+ssh:b/host"
    [row] = two.rows(mixed, "protocol=udp", "rate_bps=1e7", "duration_s=1", "omit_s=0", "--yes")
    assert (row["status"], row["where"], row["peer"]) == ("ok", "here", "ssh:b"), row
    assert row["received_count"] > 500
    refused = {
        f"{BETWEEN} where=ssh:b": f"{BETWEEN.removeprefix('topology=')} decides where, nodes, peer",
        f"{BETWEEN},veth_bridge": "nodes=two needs parent=NIC,NIC",
        f"{BETWEEN} parent=nic0,nic0": "existing ends are joined already",
        f"{BETWEEN.replace('cli', 'no')} --yes": "on b: netns:no does not exist, or has just ended; there are cli",
        BETWEEN: "this run sends tcp traffic from ssh:a/netns:web to ssh:b/netns:cli, as fast",
    }
    ended = two.commands(*(f"run datapaths {words}" for words in refused))
    for words, done in zip(refused, ended.values(), strict=True):
        assert refused[words] in one_sentence(done), words
    # Killed in the middle of a load, it leaves nothing on either machine.
    load = ("check", *TRANSIT, "--load", "--seconds", "30")
    for command in (load, ("run", "datapaths", BETWEEN, "duration_s=30")):
        running = two.start(*LABKIT, *command, "--yes")
        assert until(lambda: two.pids(lambda words: words[0].endswith("iperf3") and "-c" in words), 60)
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
        assert until(lambda: set(two.processes()) <= idle, 20), two.processes()
    assert everything(two) == before
    # This machine is one of two, in a process that sees no others.
    two.words = list(ALONE)
    findings, report = checked(two, "host", TRANSIT[1])
    assert (findings, report["paths"][0]["interfaces"][0]) == ([], "host to-b")
    two.words = []
    # What is wrong on either machine is so in a copy of both, at the same place.
    chain = "add table ip f; add chain ip f w { type filter hook forward priority 0; }"
    two.run("ssh", "b", f"nft '{chain}; add rule ip f w udp dport > 0 drop'", code=0)
    two.run("ssh", "a", "ip netns exec web ethtool -K eth0 tso off gso off", code=0)
    findings, _report = checked(two, *TRANSIT)
    (two.folder / "copy.yaml").write_text(two.labkit("clone", *TRANSIT, code=0).stdout)
    check = " ".join([*LABKIT, "check", "netns:web", "netns:cli", "--json"])
    done = two.shell(f"nsenter --net=/proc/1/ns/net -- {check}", str(two.folder / "copy.yaml"))
    assert done.returncode == 0, done.stderr
    copied = [(one["cause"], one["where"]) for one in json.loads(done.stdout)["findings"]]
    assert copied == [("drop rule", "netns:b"), ("offload off", "netns:web eth0")]
    assert [(one["cause"], one["where"]) for one in findings] == [
        ("drop rule", "ssh:b/host"), ("offload off", "ssh:a/netns:web eth0"),
    ]  # fmt: skip
    two.run("ssh", "b", "nft delete table ip f", code=0)
    two.run("ssh", "a", "ip netns exec web ethtool -K eth0 tso on gso on", code=0)
    assert two.run("ip", "link", "set", "to-b", "mtu", "1400").returncode == 0
    [first, *_], report = checked(two, *TRANSIT)
    assert (first["cause"], first["where"]) == ("MTU black hole", "the network between")
    assert report["paths"][0]["forward"]["mtu_bytes"] == 1400
