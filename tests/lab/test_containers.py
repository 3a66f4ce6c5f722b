"""Containers as endpoints, and containers of others that get an interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from worlds import LABKIT, World, one_sentence, until, world

from labkit.endpoints import container
from labkit.endpoints.attach import Wanted
from labkit.errors import BadInput, Unsupported

GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, user=False) as made:
        yield made
        assert until(lambda: not made.processes(), 20), made.processes()


def groups() -> set[Path]:
    """The control groups of labkit's containers that are there."""
    return {path for pattern in ("labkit/*/", "*/labkit/*/") for path in GROUPS.glob(pattern)}


LOOK = """
import json, sys, time
from labkit import process, topologies
spec = topologies.Spec(endpoint="container", family=6)
with topologies.build("veth", spec) as topology:
    [pair] = topology.pairs
    client, server = pair.client, pair.server
    def said(*argv):
        ended = process.run([*client.prefix, *argv])
        return [ended.returncode, ended.stdout, ended.stderr]
    found = {
        "said": {word: said(*word.split()) for word in sys.argv[1:]},
        "ping": said("ping", "-n", "-c2", "-i0.2", server.address),
        "long": len(said("head", "-c3000000", "/dev/zero")[1]),
        "signal": said("sh", "-c", "kill -TERM $$")[0],
        "before": server.counters().received_bytes,
    }
    program = client.start(["sh", "-c", "while :; do echo x; sleep 0.01; done"], held=True)
    assert program.held(time.monotonic() + 20)
    found["held"] = program.said()
    program.go()
    while not program.said():
        time.sleep(0.01)
    program.hold()
    lengths = [-1, 0]
    while lengths[-1] != lengths[-2]:
        time.sleep(0.5)
        lengths.append(len(program.said()))
    program.kill()
    program.ended()
    while "sleep 0.01" in said("ps", "ax", "-o", "args")[1]:
        time.sleep(0.01)
    print(json.dumps(found))
"""


@pytest.mark.needs("root", "veth", "runc", "ping")
def test_programs_run_in_a_container(machine: World) -> None:
    asked = (
        "hostname",
        "unshare --net true",
        "touch /etc/labkit-was-here",
        "no-program",
        "cat /proc/self/status",
    )
    argv = ["unshare", "--fork", "--pid", "--kill-child", "--mount-proc", "--net", "--mount", "--"]
    before = groups()
    done = machine.run(*argv, sys.executable, "-c", LOOK, *asked, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    said = found["said"]
    assert said["hostname"] == [0, "client0\n", ""]
    assert "not permitted" in said["unshare --net true"][2]  # the system call filter
    assert "Read-only" in said["touch /etc/labkit-was-here"][2]
    assert said["no-program"][0] == 127
    status = dict(
        line.split(":\t") for line in said["cat /proc/self/status"][1].splitlines() if ":\t" in line
    )
    assert status["Seccomp"] == "2"
    assert not int(status["CapEff"], 16) >> 21 & 1  # CAP_SYS_ADMIN
    assert found["ping"][0] == 0, found["ping"]
    assert found["long"] == 3000000
    assert found["signal"] == -15
    assert found["held"] == ""
    assert groups() <= before
    assert not list(machine.folder.glob("tmp/*"))


@pytest.mark.needs("root", "bridge", "runc", "iperf3")
def test_containers_and_namespaces_are_compared(machine: World) -> None:
    words = ("topology=veth_bridge", "endpoint=namespace,container", "duration_s=2", "slices=3")
    rows = machine.rows(*words, timeout=200)
    arms = {row["arm"]: row for row in rows}
    assert set(arms) == {"veth_bridge", "veth_bridge (again)", "veth_bridge/container"}
    row = arms["veth_bridge/container"]
    assert (row["topology"], row["endpoint"]) == ("veth_bridge", "container")
    assert row["container_runtime"].startswith(("runc ", "crun "))
    assert arms["veth_bridge"]["endpoint"] == "namespace"
    of_it = [row for row in rows if row["arm"] == "veth_bridge/container"]
    assert {row["method"] for row in of_it} == {"slice", "whole"}
    assert {row["status"] for row in rows} <= {"ok", "invalid"}, [row["reason"] for row in rows]
    assert any(row["throughput_bps"] for row in of_it)


@pytest.mark.needs("root", "bridge", "runc", "ping")
def test_a_killed_run_leaves_no_container(machine: World) -> None:
    words = ("topology=veth_bridge", "endpoint=container", "protocol=ping")
    process = machine.start(*LABKIT, "run", "datapaths", *words, "duration_s=60")
    assert until(lambda: machine.pids(lambda words: {"--", "-i0.002"} <= set(words)), 60), process.poll()
    left = groups()
    assert left
    process.kill()
    process.communicate()
    assert until(lambda: not machine.processes(), 20), machine.processes()
    assert until(
        lambda: not any((group / "cgroup.procs").read_text() for group in left if group.exists()), 20
    )
    # The groups are empty, and gone when the next experiment has been.
    machine.rows(*words, "duration_s=1")
    assert not left & groups()


def test_without_a_runtime_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "RUNTIMES", ("no-runc", "no-crun"))
    with pytest.raises(Unsupported, match="install the Debian package runc"):
        container.runtime()


ENGINE = """#!/bin/sh
for last; do :; done
[ -s "$0.$last" ] && exec cat "$0.$last"
echo "Error: No such container: $last" >&2
exit 1
"""


@pytest.mark.needs("root", "bridge", "macvlan", "ping", "busybox")
def test_a_running_container_gets_interfaces(machine: World, tmp_path: Path) -> None:
    """The containers are namespaces of sleeping programs, and what tells their processes is no docker."""
    engine = tmp_path / "bin/docker"
    engine.parent.mkdir()
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    pids, programs = {}, []
    for name in ("web", "db"):
        sleeping = machine.start("unshare", "--net", "sleep", "1000")
        pids[name] = sleeping.pid
        programs.append(sleeping)
        assert until(
            lambda pid=sleeping.pid: (
                os.readlink(f"/proc/{pid}/ns/net") != os.readlink(f"/proc/{machine.keeper.pid}/ns/net")
                and Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
            ),
            20,
        )
        Path(f"{engine}.{name}").write_text(str(sleeping.pid))
    Path(f"{engine}.idle").write_text("0")
    machine.run("sh", "-c", "ip link add br0 up type bridge && ip address add 10.9.0.1/24 dev br0")
    machine.run("sh", "-c", "ip link add nic0 up type veth peer name far0")
    path = f"{engine.parent}:{os.environ['PATH']}"

    def attach(*words: str, code: int = 0) -> str:
        done = machine.labkit("attach", *words, PATH=path)
        if code:
            return one_sentence(done)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def inside(name: str, *argv: str) -> str:
        return subprocess.run(
            ["nsenter", f"--target={pids[name]}", "--net", *argv], capture_output=True, text=True, check=True
        ).stdout

    given = (
        "--address",
        "10.9.0.2/24",
        "--gateway",
        "10.9.0.1",
        "--mac",
        "02:00:00:00:00:77",
        "--mtu",
        "1400",
    )
    assert attach("web", "--veth", "br0", *given) == "web: eth1 10.9.0.2/24"
    [link] = json.loads(inside("web", "ip", "-j", "link", "show", "dev", "eth1"))
    assert (link["address"], link["mtu"]) == ("02:00:00:00:00:77", 1400)
    assert "default via 10.9.0.1" in inside("web", "ip", "route")
    inside("web", "ping", "-n", "-c1", "10.9.0.1")

    lease = tmp_path / "udhcpd"
    (tmp_path / "leases").touch()
    lease.write_text(
        "start 10.9.0.50\nend 10.9.0.60\ninterface br0\noption subnet 255.255.255.0\noption router 10.9.0.1\n"
        f"lease_file {tmp_path / 'leases'}\npidfile {tmp_path / 'pid'}\n"
    )
    programs.append(machine.start("busybox", "udhcpd", "-f", str(lease)))
    assert until((tmp_path / "pid").exists, 20)
    assert attach("db", "--veth", "br0", "--address", "dhcp").startswith("db: eth1 10.9.0.")
    inside("db", "ping", "-n", "-c1", "10.9.0.2")
    assert attach("db", "--macvlan", "nic0", "--interface", "eth2", "--address", "10.8.0.2/24")
    kinds = {link["ifname"] for link in json.loads(inside("db", "ip", "-j", "link"))}
    assert kinds == {"lo", "eth1", "eth2"}

    before = machine.interfaces()
    unreachable = ("--address", "1.2.3.4/24", "--gateway", "9.9.9.9")
    for words, says in (
        (("nosuch", "--veth", "br0"), "no container nosuch"),
        (("idle", "--veth", "br0"), "does not run"),
        (("db", "--veth", "br0"), "has an interface eth1 already"),
        (("db", "--veth", "nic0", "--interface", "eth5"), "nic0 is no bridge"),
        (("db", "--veth", "br7", "--interface", "eth5"), "no interface br7"),
        (("db", "--veth", "br0", "--interface", "eth5", "--vlan", "10"), "does not filter VLANs"),
        (
            ("db", "--veth", "br0", "--interface", "e5", *unreachable),
            "default route",
        ),
    ):
        assert says in attach(*words, code=2)
    assert machine.interfaces() == before  # what was half made is gone
    for program in programs:
        program.kill()
        program.communicate()
    assert until(lambda: not [name for name in machine.interfaces() if name.startswith("lk")], 20)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Wanted("gre", "br0"), "veth, macvlan, ipvlan"),
        (Wanted("veth", "br 0"), "no name of an interface"),
        (Wanted("veth", "br0", address="10.0.0.1"), "10.0.0.1/24, say"),
        (Wanted("veth", "br0", address="ten/8"), "ten"),
        (Wanted("veth", "br0", gateway="10.0.0.1"), "needs an address"),
        (Wanted("veth", "br0", mac="02"), "no MAC address"),
        (Wanted("ipvlan", "br0", mac="02:00:00:00:00:01"), "leave the MAC address out"),
        (Wanted("veth", "br0", vlan=4095), "1 to 4094"),
    ],
)
def test_what_cannot_be_wanted_is_refused(wanted: Wanted, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        wanted.check()
