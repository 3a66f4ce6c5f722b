"""`labkit attach` gives containers of others an interface.

The containers are namespaces of sleeping programs. A fake docker reports their processes.
"""

import dataclasses
import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest
from sandbox import LABKIT, Done, Sandbox, Trap, one_sentence, sandbox, shell_program, until

from labkit.commands import attach
from labkit.commands.attach import AttachRequest
from labkit.common.errors import BadInput, Failed
from labkit.measure.topologies.open_vswitch.switch import SCHEMA
from labkit.system import netlink

pytestmark = pytest.mark.long

ENGINE = """
for last; do :; done
[ -s "$0.$last" ] && exec cat "$0.$last"
echo "Error: No such container: $last" >&2
exit 1
"""


class Machine:
    """A sandbox with a bridge br0 (10.9.0.1), a NIC nic0, the running containers web and db, and the stopped container
    idle."""

    def __init__(self, made: Sandbox) -> None:
        self.sandbox = made
        self.engine = made.folder / "bin/docker"
        self.path = shell_program(made.folder / "bin", "docker", ENGINE)
        self.programs = {name: made.start("unshare", "--net", "sleep", "1000") for name in ("web", "db")}
        for name in self.programs:
            assert until(lambda name=name: self.sleeps(name), 20)
            Path(f"{self.engine}.{name}").write_text(str(self.programs[name].pid))
        Path(f"{self.engine}.idle").write_text("0")
        made.run("sh", "-c", "ip link add br0 up type bridge && ip address add 10.9.0.1/24 dev br0")
        made.run("sh", "-c", "ip link add nic0 up type veth peer name far0")

    def sleeps(self, name: str) -> bool:
        """Return whether the container's process already runs sleep."""
        return Path(f"/proc/{self.programs[name].pid}/comm").read_text() == "sleep\n"

    def attach(self, *words: str, code: int = 0) -> str:
        """Run labkit attach and return what it prints."""
        done = self.sandbox.labkit("attach", *words, PATH=self.path)
        if code:
            return one_sentence(done, code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def attach_all(self, *lines: str) -> list[Done]:
        """Return how several commands of labkit attach ended, in one process."""
        return [*self.sandbox.commands(*(f"attach {line}" for line in lines), PATH=self.path).values()]

    def inside(self, name: str, *argv: str) -> str:
        """Return what a program prints in a container's network namespace."""
        enter = ["nsenter", f"--target={self.programs[name].pid}", "--net"]
        return subprocess.run([*enter, *argv], capture_output=True, text=True, check=True).stdout

    def ports(self) -> list[str]:
        """Return the ports of br0."""
        return [name for name, one in self.sandbox.interfaces().items() if one.get("master") == "br0"]

    def end(self) -> None:
        """End all containers, which removes their interfaces."""
        for program in self.programs.values():
            program.kill()
            program.communicate()
        assert until(lambda: not [name for name in self.sandbox.interfaces() if name.startswith("lk")], 20)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with sandbox(tmp_path, user=False) as made:
        result = Machine(made)
        trap = Trap(made.folder / "here")
        yield result
        result.end()
        assert not trap.imported()


@pytest.mark.long
@pytest.mark.needs("root", "bridge", "macvlan", "ping", "busybox")
def test_a_running_container_gets_interfaces(machine: Machine, tmp_path: Path) -> None:
    given = "--address 10.9.0.2/24 --gateway 10.9.0.1 --mac 02:00:00:00:00:77 --mtu 1400"
    said = machine.attach("web", "--veth", "br0", *given.split())
    assert said == f"web: eth1 10.9.0.2/24; on this machine: {machine.ports()[0]}"
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
    machine.programs["server"] = machine.sandbox.start("busybox", "udhcpd", "-f", str(lease))
    assert until((tmp_path / "pid").exists, 20)
    assert machine.attach("db", "--veth", "br0", "--address", "dhcp").startswith("db: eth1 10.9.0.")
    assert "default via 10.9.0.1" in machine.inside("db", "ip", "route")
    machine.inside("db", "ping", "-n", "-c1", "10.9.0.2")
    words = ("db", "--macvlan", "nic0", "--interface", "eth2", "--address", "10.8.0.2/24")
    assert machine.attach(*words) == "db: eth2 10.8.0.2/24; on this machine: nic0"
    names = {link["ifname"] for link in json.loads(machine.inside("db", "ip", "-j", "link"))}
    assert names == {"lo", "eth1", "eth2"}


@pytest.mark.needs("root", "bridge")
def test_what_pipework_does(machine: Machine) -> None:
    """It makes a bridge, waits, tells neighbours of an address, and detaches."""
    made, waited, absent = machine.attach_all(
        "web --veth br7 --create --address 10.7.0.2/24", "web --wait 5", "web --wait 0.1 --interface eth2"
    )
    assert (made.returncode, waited.returncode) == (0, 0), (made, waited)
    assert "no interface eth2 that is up" in one_sentence(absent)
    # A bridge that takes the address of a new port would forget its neighbours.
    machine.sandbox.run("ip", "link", "set", "br7", "address", "02:00:00:00:00:07")
    stale = "neigh replace 10.7.0.3 lladdr 02:00:00:00:00:99 dev br7 nud stale"
    machine.sandbox.run("ip", *stale.split())
    words = "--veth br7 --interface eth2 --address 10.7.0.3/24 --mac 02:00:00:00:00:77"
    second, detached = machine.attach_all(f"web {words}", "web --detach")
    assert "web also has 10.7.0.2/24 at eth1, in the same network" in second.stderr
    assert "02:00:00:00:00:77" in machine.sandbox.run("ip", "neigh", "show", "10.7.0.3").stdout
    assert detached.returncode == 0, detached
    web = str(machine.programs["web"].pid)  # whose administrator has added an interface like labkit's
    machine.sandbox.run("ip", "link", "add", "lk0", "type", "veth", "peer", "name", "eth3", "netns", web)
    refused = {
        "web --detach --interface eth3": "labkit has not added eth3",
        "web --wait nan": "--wait=nan is outside 0 to 86400",
        "web --wait 1 --mtu 1400": "--mtu does nothing here",
    }
    for done, says in zip(machine.attach_all(*refused), refused.values(), strict=True):
        assert says in one_sentence(done)
    machine.sandbox.run("ip", "link", "delete", "lk0")
    names = {link["ifname"] for link in json.loads(machine.inside("web", "ip", "-j", "link"))}
    assert names == {"lo", "eth2"}


# Accepts one connection and answers.
LISTENER = "import socket; socket.create_server(('10.7.0.1', 7000)).accept()[0].sendall(b'yes')"
CLIENT = "import socket; print(socket.create_connection(('10.7.0.1', 7000), 20).recv(9).decode())"


@pytest.mark.needs("root", "bridge", "ping", "openvswitch")
def test_a_bridge_of_open_vswitch(machine: Machine) -> None:
    """It is made, in user space where the kernel lacks the datapath, and its database keeps no port that ended."""
    made, folder = machine.sandbox, machine.sandbox.folder / "ovs"
    folder.mkdir()
    names = ("OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR")
    made.environment |= dict.fromkeys(names, str(folder))
    made.run("ovsdb-tool", "create", f"{folder}/conf.db", str(SCHEMA), code=0)
    machine.programs["database"] = made.start(
        "ovsdb-server", f"{folder}/conf.db", f"--remote=punix:{folder}/db.sock", "-vconsole:off"
    )
    assert until((folder / "db.sock").exists, 20)
    machine.programs["switch"] = made.start("ovs-vswitchd", f"unix:{folder}/db.sock", "-vconsole:off")

    def vsctl(*words: str) -> list[str]:
        return made.run("ovs-vsctl", "--timeout=20", *words, code=0).stdout.split()

    made.run("ovs-vsctl", "--timeout=60", "set", "Open_vSwitch", ".", "external_ids:ready=1", code=0)
    plain, tagged, told = machine.attach_all(
        "web --veth ovs7 --create --address 10.7.0.2/24",
        "db --veth ovs7 --create --vlan 7 --address 10.7.0.3/24 --interface eth7",
        "web --veth br8 --create --ovs --interface eth8",
    )
    assert (plain.returncode, tagged.returncode, told.returncode) == (0, 0, 0), (plain, tagged, told)
    assert vsctl("list-br") == ["br8", "ovs7"]
    of_web, of_db = (done.stdout.split()[-1] for done in (plain, tagged))
    assert sorted(vsctl("list-ports", "ovs7")) == sorted([of_web, of_db])
    assert vsctl("get", "port", of_db, "tag") == ["7"]
    made.run("ip", "address", "add", "10.7.0.1/24", "dev", "ovs7", code=0)
    machine.inside("web", "ping", "-n", "-c1", "-w20", "10.7.0.1")
    # TCP, whose checksums a veth leaves to others
    listener = machine.programs["listener"] = made.start("python3", "-I", "-c", LISTENER)
    assert until(lambda: ":1B58 " in Path(f"/proc/{listener.pid}/net/tcp").read_text(), 20)
    assert machine.inside("web", "python3", "-I", "-c", CLIENT) == "yes\n"

    refused = {
        "web --veth ovs9 --create --interface eth9 --address 1.2.3.4/24 --gateway 9.9.9.9": "via 9.9.9.9",
        "web --veth ovs9 --ovs": "--ovs says which bridge --create makes",
    }
    for done, says in zip(machine.attach_all(*refused), refused.values(), strict=True):
        assert says in one_sentence(done)
    assert vsctl("list-br") == ["br8", "ovs7"]
    machine.attach("web", "--detach")
    assert vsctl("list-ports", "ovs7") == [of_db]
    ended = machine.programs.pop("db")
    ended.kill()
    ended.communicate()
    assert until(lambda: of_db not in made.interfaces(), 20)
    last = machine.attach("web", "--veth", "ovs7").split()[-1]
    assert vsctl("list-ports", "ovs7") == [last]


@pytest.mark.needs("root", "ipvlan")
def test_ipvlan_in_layer_3_mode(machine: Machine) -> None:
    machine.attach("db", "--ipvlan", "nic0", "--l3", "--address", "10.6.0.2/24")
    [link] = json.loads(machine.inside("db", "ip", "-j", "-d", "link", "show", "dev", "eth1"))
    assert link["linkinfo"]["info_data"]["mode"] == "l3"


@pytest.mark.needs("root", "bridge")
def test_failed_attach_leaves_nothing(machine: Machine) -> None:
    machine.attach("db", "--veth", "br0", "--address", "10.9.0.9/24")
    machine.attach("db", "--veth", "br0", "--interface", "eth6", "--address", "fd09::9/64")
    before = machine.sandbox.interfaces()
    unreachable = ("--address", "1.2.3.4/24", "--gateway", "9.9.9.9")
    refused = (
        (("nosuch", "--veth", "br0"), "no container nosuch"),
        (("idle", "--veth", "br0"), "is not running"),
        (("db", "--veth", "br0"), "already has an interface eth1"),
        (("db", "--veth", "nic0", "--interface", "eth5"), "nic0 is not a bridge"),
        (("db", "--veth", "br7", "--interface", "eth5"), "no interface br7"),
        (("db", "--veth", "br0", "--interface", "eth5", "--vlan", "10"), "does not filter VLANs"),
        (("web", "--veth", "br0", "--address", "10.9.0.9/24"), "the address 10.9.0.9 is taken: "),
        (("web", "--veth", "br0", "--address", "fd09::9/64"), "the address fd09::9 is taken: "),
        (("web", "--veth", "br0", "--address", "10.9.0.1/24"), "10.9.0.1 is taken: this machine has it"),
        (
            ("db", "--veth", "br0", "--interface", "eth5", "--address", "10.9.0.9/24"),
            "is taken: the container db",
        ),
        (("db", "--veth", "br0", "--interface", "eth5", *unreachable), "route to default via 9.9.9.9"),
    )
    lines = {shlex.join(words): says for words, says in refused}
    for done, (line, says) in zip(machine.attach_all(*lines), lines.items(), strict=True):
        assert says in one_sentence(done), line
    assert machine.sandbox.interfaces() == before
    names = {link["ifname"] for link in json.loads(machine.inside("db", "ip", "-j", "link"))}
    assert names == {"lo", "eth1", "eth6"}


@pytest.mark.needs("root", "bridge", "busybox")
def test_a_command_that_is_ended_leaves_nothing(machine: Machine) -> None:
    """As timeout(1) or systemd ends it, here while nobody answers DHCP."""
    before = machine.sandbox.interfaces().keys()
    words = ("attach", "web", "--veth", "br0", "--address", "dhcp")
    started = machine.sandbox.start(*LABKIT, *words, PATH=machine.path)
    assert until(lambda: "eth1" in machine.inside("web", "ip", "link"), 20)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=20)
    assert started.returncode == 128 + signal.SIGTERM
    assert machine.sandbox.interfaces().keys() == before
    assert "eth1" not in machine.inside("web", "ip", "link")


def link(index: int, name: str, kind: str | None = None, **more: object) -> netlink.Link:
    data = {f"IFLA_VLAN_{key.upper()}": value for key, value in more.items() if key in ("id", "protocol")}
    return netlink.Link(index, name, kind, True, True, 1500, None, None, more.get("link"), None, data)  # type: ignore[arg-type]


@pytest.mark.parametrize(("default", "left"), [(1, "1"), (30, "30"), (None, "1")])
def test_a_port_leaves_the_vlan_that_its_bridge_gives(
    default: int | None, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(netlink, "index_of", lambda _name: 20)
    monkeypatch.setattr(attach.process, "output", ran.append)
    data = {"IFLA_BR_VLAN_FILTERING": 1, "IFLA_BR_VLAN_DEFAULT_PVID": default}
    bridge = dataclasses.replace(link(7, "br0", "bridge"), data=data)
    wanted = AttachRequest("veth", "br0", vlan=20)
    attach._veth(Mock(), Mock(fd=3), wanted, bridge, ExitStack())
    assert [(argv[2], argv[argv.index("vid") + 1]) for argv in ran] == [("del", left), ("add", "20")]


@pytest.mark.parametrize(("ends", "removes"), [("exit 0", False), ("exit 2", True), ("exit 1", False)])
def test_only_a_bridge_that_was_not_there_is_removed(
    ends: str, removes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer of the database, the bridge may be somebody's."""
    text = f'echo "$@" >>"$0.said"; case "$*" in *br-exists*) {ends};; *add-br*) exit 1;; esac'
    monkeypatch.setenv("PATH", shell_program(tmp_path, "ovs-vsctl", text))
    with (
        pytest.raises(Failed, match="does not say" if ends == "exit 1" else "ended with 1"),
        ExitStack() as undo,
    ):
        attach._bridge(Mock(), AttachRequest("veth", "ovs7", create=True), undo)
    assert ("del-br ovs7" in (tmp_path / "ovs-vsctl.said").read_text()) is removes


LONG = "enx001122334455"  # 15 characters, the maximum length of a name


@pytest.mark.parametrize(
    ("over", "there", "made"),
    [
        ("nic0", [], "nic0.100"),
        (LONG, [], "lk7.100"),  # truncated to 15 characters it would be the NIC itself
        ("nic0", [link(8, "backup", "vlan", link=7, id=100)], None),
        ("nic0", [link(8, "nic0.100", "dummy")], "lk7.100"),
        ("nic0", [link(8, "nic0.100", "vlan", link=9, id=100)], "lk7.100"),
        ("nic0", [link(8, "nic0.100", "vlan", link=7, id=100, protocol=0x88A8)], "lk7.100"),
    ],
)
def test_vlan_is_on_the_nic(
    over: str, there: list[netlink.Link], made: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters: list[netlink.Message] = []
    monkeypatch.setattr(netlink, "index_of", lambda name: {made: 20}[name])
    known = {one.name: one for one in [link(7, over), *there]}
    wanted = AttachRequest("macvlan", over, vlan=100)
    with ExitStack() as undo:
        assert attach._vlan(Mock(do=parameters.append), wanted, known, undo) == (20 if made else 8)
        assert [one.what for one in parameters] == ([f"create vlan {made}"] if made else [])
    assert len(parameters) == (2 if made else 0)  # only interfaces that labkit created are removed


def test_vlan_without_name_is_refused() -> None:
    known = {one.name: one for one in (link(7, LONG), link(8, "lk7.100", "dummy"))}
    with pytest.raises(BadInput, match="type vlan id 100"):
        attach._vlan(Mock(), AttachRequest("macvlan", LONG, vlan=100), known, ExitStack())


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (AttachRequest("veth", "br0", "eth 1"), "--interface='eth 1' is not valid: write up to 15 letters"),
        (AttachRequest("veth", "br0", address="10.0.0.1"), "for example 10.0.0.1/24"),
        (AttachRequest("veth", "br0", gateway="10.0.0.1"), "needs --address"),
        (AttachRequest("veth", "br0", mac="02"), "--mac='02' is not valid"),
        (AttachRequest("ipvlan", "br0", mac="02:00:00:00:00:01"), "leave --mac out"),
        (AttachRequest("veth", "br0", vlan=4095), "1 to 4094"),
        (AttachRequest("veth", "br0", mtu_bytes=-5), "--mtu=-5 is outside 68 to 65535"),
    ],
)
def test_invalid_requests_are_refused(wanted: AttachRequest, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        wanted.check()
