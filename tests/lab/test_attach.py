"""Containers of others that get an interface. Here they are namespaces of sleeping programs, and what tells their
processes is no docker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from worlds import World, one_sentence, until, world

from labkit.endpoints.attach import Wanted
from labkit.errors import BadInput

ENGINE = """#!/bin/sh
for last; do :; done
[ -s "$0.$last" ] && exec cat "$0.$last"
echo "Error: No such container: $last" >&2
exit 1
"""


class Machine:
    """A world with a bridge br0 (10.9.0.1), a NIC nic0, and containers web, db that run, and idle that does not."""

    def __init__(self, made: World) -> None:
        self.world = made
        self.engine = made.folder / "bin/docker"
        self.engine.parent.mkdir()
        self.engine.write_text(ENGINE)
        self.engine.chmod(0o755)
        self.programs = {name: made.start("unshare", "--net", "sleep", "1000") for name in ("web", "db")}
        for name in self.programs:
            assert until(lambda name=name: self.sleeps(name), 20)
            Path(f"{self.engine}.{name}").write_text(str(self.programs[name].pid))
        Path(f"{self.engine}.idle").write_text("0")
        made.run("sh", "-c", "ip link add br0 up type bridge && ip address add 10.9.0.1/24 dev br0")
        made.run("sh", "-c", "ip link add nic0 up type veth peer name far0")

    def sleeps(self, name: str) -> bool:
        """Whether the container is one already."""
        return Path(f"/proc/{self.programs[name].pid}/comm").read_text() == "sleep\n"

    def attach(self, *words: str, code: int = 0) -> str:
        """What labkit attach says."""
        done = self.world.labkit("attach", *words, PATH=f"{self.engine.parent}:{os.environ['PATH']}")
        if code:
            return one_sentence(done, code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def inside(self, name: str, *argv: str) -> str:
        """What a program says in a container's network namespace."""
        enter = ["nsenter", f"--target={self.programs[name].pid}", "--net"]
        return subprocess.run([*enter, *argv], capture_output=True, text=True, check=True).stdout

    def end(self) -> None:
        """End all; the interfaces go with them."""
        for program in self.programs.values():
            program.kill()
            program.communicate()
        assert until(lambda: not [name for name in self.world.interfaces() if name.startswith("lk")], 20)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with world(tmp_path, user=False) as made:
        found = Machine(made)
        yield found
        found.end()


@pytest.mark.needs("root", "bridge", "macvlan", "ping", "busybox")
def test_a_running_container_gets_interfaces(machine: Machine, tmp_path: Path) -> None:
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
    assert machine.attach("web", "--veth", "br0", *given) == "web: eth1 10.9.0.2/24"
    [link] = json.loads(machine.inside("web", "ip", "-j", "link", "show", "dev", "eth1"))
    assert (link["address"], link["mtu"]) == ("02:00:00:00:00:77", 1400)
    assert "default via 10.9.0.1" in machine.inside("web", "ip", "route")
    machine.inside("web", "ping", "-n", "-c1", "10.9.0.1")

    lease = tmp_path / "udhcpd"
    (tmp_path / "leases").touch()
    lease.write_text(
        "start 10.9.0.50\nend 10.9.0.60\ninterface br0\noption subnet 255.255.255.0\noption router 10.9.0.1\n"
        f"lease_file {tmp_path / 'leases'}\npidfile {tmp_path / 'pid'}\n"
    )
    machine.programs["server"] = machine.world.start("busybox", "udhcpd", "-f", str(lease))
    assert until((tmp_path / "pid").exists, 20)
    assert machine.attach("db", "--veth", "br0", "--address", "dhcp").startswith("db: eth1 10.9.0.")
    assert "default via 10.9.0.1" in machine.inside("db", "ip", "route")
    machine.inside("db", "ping", "-n", "-c1", "10.9.0.2")
    assert machine.attach("db", "--macvlan", "nic0", "--interface", "eth2", "--address", "10.8.0.2/24")
    names = {link["ifname"] for link in json.loads(machine.inside("db", "ip", "-j", "link"))}
    assert names == {"lo", "eth1", "eth2"}


@pytest.mark.needs("root", "bridge")
def test_what_cannot_be_attached_leaves_nothing(machine: Machine) -> None:
    machine.attach("db", "--veth", "br0")
    before = machine.world.interfaces()
    unreachable = ("--address", "1.2.3.4/24", "--gateway", "9.9.9.9")
    for words, says in (
        (("nosuch", "--veth", "br0"), "no container nosuch"),
        (("idle", "--veth", "br0"), "does not run"),
        (("db", "--veth", "br0"), "has an interface eth1 already"),
        (("db", "--veth", "nic0", "--interface", "eth5"), "nic0 is no bridge"),
        (("db", "--veth", "br7", "--interface", "eth5"), "no interface br7"),
        (("db", "--veth", "br0", "--interface", "eth5", "--vlan", "10"), "does not filter VLANs"),
        (("db", "--veth", "br0", "--interface", "eth5", *unreachable), "default route"),
    ):
        assert says in machine.attach(*words, code=2)
    assert machine.world.interfaces() == before
    names = {link["ifname"] for link in json.loads(machine.inside("db", "ip", "-j", "link"))}
    assert names == {"lo", "eth1"}


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
