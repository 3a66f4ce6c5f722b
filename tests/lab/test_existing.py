"""Networks that others made: their paths as `labkit draw` follows them, and load between their ends.

Plain commands make them, in namespaces of the test's own. What the kernel and the folders say is the same before and
after every command.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Need
from sandbox import LABKIT, Sandbox, also, one_sentence, only_run, sandbox, until

pytestmark = pytest.mark.needs("root", "ip", "veth", "bridge")

# A bridge of this machine with two ends, as engines make it.
BRIDGE = """
ip link add br0 up type bridge && ip address add 10.77.0.1/24 dev br0
for end in web.2 cli.3; do
    name=${end%.*}
    ip netns add $name
    ip link add v-$name master br0 up type veth peer name eth0 netns $name
    ip -n $name address add 10.77.0.${end#*.}/24 dev eth0
    ip -n $name link set eth0 up
    ip -n $name link set lo up
    ip -n $name route add default via 10.77.0.1
done
"""
SERVICE = """nft 'table ip kube {
    map services { type ipv4_addr . inet_proto . inet_service : verdict
                   elements = { 10.96.0.10 . tcp . 80 : goto service, 10.96.0.10 . udp . 53 : goto two } }
    chain one { meta l4proto tcp dnat to 10.77.0.3:8080; }
    chain two { meta l4proto tcp dnat to 10.77.0.9:8080; }
    chain service { numgen random mod 2 vmap { 0 : goto one, 1 : goto two }; }
    chain first { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @services; }
}'
"""
SECOND = """
ip -n web address add 10.78.0.2/24 dev eth0; ip -n cli address add 10.78.0.3/24 dev eth0
"""
NO_NETWORK_AND_V6 = """
ip netns add alone
ip netns add six
ip link add v-six master br0 up type veth peer name eth0 netns six
ip -n six link set eth0 up
ip -n six address add fd77::2/64 dev eth0
"""
# Each end behind a bridge of its own, and this machine forwards.
ROUTED = """
echo 1 >/proc/sys/net/ipv4/ip_forward
for end in web.2 cli.3; do
    name=${end%.*}; number=${end#*.}
    ip link add br$number up type bridge && ip address add 10.77.$number.1/24 dev br$number
    ip netns add $name
    ip link add v-$name master br$number up type veth peer name eth0 netns $name
    ip -n $name address add 10.77.$number.2/24 dev eth0
    ip -n $name link set eth0 up
    ip -n $name route add default via 10.77.$number.1
done
"""
ON_A_NIC = """
ip link add nic0 up type veth peer name far0 && ip link set far0 up
for end in web.2 cli.3; do
    name=${end%%.*}
    ip netns add $name
    ip link add link nic0 name eth0 netns $name type %s
    ip -n $name address add 10.77.0.${end#*.}/24 dev eth0
    ip -n $name link set eth0 up
done
"""
# Two machines with a cable, and on each a bridge that a VXLAN joins.
OVERLAY = """
for node in 2 3; do
    ip netns add node$node
    ip -n node$node link set lo up
done
ip -n node2 link add eth0 type veth peer name eth0 netns node3
for end in web.2.3 cli.3.2; do
    name=${end%%.*}; rest=${end#*.}; node=${rest%.*}; other=${rest#*.}
    ip netns add $name
    ip -n node$node address add 192.0.2.$node/24 dev eth0
    ip -n node$node link set eth0 up
    ip -n node$node link add br0 up type bridge
    ip -n node$node link add vx0 master br0 up type vxlan id 7 dstport 4789 local 192.0.2.$node remote 192.0.2.$other
    ip -n node$node link add v-$name mtu 1450 master br0 up type veth peer name eth0 netns $name
    ip -n $name address add 10.77.0.$node/24 dev eth0
    ip -n $name link set eth0 mtu 1450 up
done
"""
PATHS: dict[str, tuple[str, list[str]]] = {
    "bridge": (BRIDGE, ["web/eth0 out", "host/v-web in", "host/v-cli out", "cli/eth0 in"]),
    "routed": (
        ROUTED,
        ["web/eth0 out", "host/v-web in", "host/br2 in", "host/br3 out", "host/v-cli out", "cli/eth0 in"],
    ),
    "macvlan": (ON_A_NIC % "macvlan mode bridge", ["web/eth0 out", "cli/eth0 in"]),
    "ipvlan": (ON_A_NIC % "ipvlan mode l2", ["web/eth0 out", "cli/eth0 in"]),
    "vxlan": (
        OVERLAY,
        [
            "web/eth0 out", "node2/v-web in", "node2/vx0 out", "node2/eth0 out", "node3/eth0 in", "node3/vx0 in",
            "node3/v-cli out", "cli/eth0 in",
        ],
    ),
}  # fmt: skip
READ = """
for name in "" $(ls /run/netns); do
    in="${name:+ip netns exec $name}"
    for what in "-d link" address rule "route show table all"; do $in ip $what; done
    $in tc qdisc show
    $in nft -s list ruleset
    $in grep -rs "" /proc/sys/net
done
"""


class Machine:
    """A sandbox that has names of namespaces of its own."""

    def __init__(self, made: Sandbox, names: subprocess.Popen[str]) -> None:
        self.sandbox = made
        made.words = ["nsenter", f"--target={names.pid}", "--mount", "--"]

    def make(self, script: str, *words: str, **environment: str) -> None:
        """Make a network by plain commands, and wait until its carriers and addresses no longer change."""
        self.sandbox.run("sh", "-ec", script, *words, code=0, **environment)
        seen = [""]

        def settled() -> bool:
            seen.append("\n".join(self.everything()))
            return seen[-1] == seen[-2] and " tentative" not in seen[-1]

        assert until(settled, 30, step_s=1.2)

    def everything(self) -> list[str]:
        """Return what the kernel says of all namespaces, without counts that change by themselves."""
        lines = self.sandbox.run("sh", "-c", READ).stdout.splitlines()
        volatile = re.compile("conntrack_count|stable_secret|netfilter/nf_log/|max_dgram_qlen")
        settings = [line for line in lines if not volatile.search(line)]
        return [re.sub(r"_timer +[\d.]+|expires \d+sec|_lft \d+sec", "", line) for line in settings]

    def state(self, *words: str) -> dict[str, Any]:
        """Return what `labkit draw` says of the path between two ends, or of a file."""
        done = self.sandbox.labkit("draw", *words, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        state: dict[str, Any] = json.loads(done.stdout)
        return state


@contextmanager
def started(folder: Path) -> Iterator[Machine]:
    with sandbox(folder, user=False) as made:
        names = made.start(
            "unshare", "--mount", "sh", "-ec",
            "for at in /run/netns /var/lib/cni; do mkdir -p $at; mount -t tmpfs names $at; done; echo; exec sleep 1000",
        )  # fmt: skip
        assert names.stdout is not None
        assert names.stdout.readline() == "\n"
        yield Machine(made, names)
        names.kill()
        names.communicate()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with started(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def bridged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Make the bridge and its ends once, for tests that must leave all of it as it is."""
    with started(tmp_path_factory.mktemp("bridged")) as made:
        made.make(BRIDGE + NO_NETWORK_AND_V6)
        before = made.everything()
        yield made
        assert made.everything() == before


def steps(of: list[dict[str, str]]) -> list[str]:
    return [f"{one['namespace'].removeprefix('netns:')}/{one['interface']} {one['direction']}" for one in of]


def interfaces(state: dict[str, Any]) -> list[tuple[str, int | None, list[str]]]:
    """Return kind, MTU and addresses of interfaces, without what a copy has in the place of other machines."""
    return sorted(
        (one["kind"], None if one["kind"] == "vxlan" else one["mtu_bytes"], [
            each for each in one["addresses"] if not each.startswith("fe80")
        ])
        for space in state["namespaces"]
        for one in space["interfaces"]
        if space["name"] != "outside" and one["kind"] != "loopback"
    )  # fmt: skip


# Podman has a network of macvlans, below, and test_check.py routers.
@pytest.mark.parametrize(
    "name", ["bridge", *also("long", "ipvlan", "vxlan"), *also("exhaustive", "routed", "macvlan")]
)
def test_path_is_followed(name: str, machine: Machine, need: Need) -> None:
    if name in ("macvlan", "ipvlan", "vxlan"):
        need(name)
    script, forward = PATHS[name]
    machine.make(script)
    before = machine.everything()
    state = machine.state("netns:web", "netns:cli")
    assert steps(state["forward"]) == forward
    turned = {"in": "out", "out": "in"}
    assert steps(state["back"]) == [
        f"{step.split()[0]} {turned[step.split()[1]]}" for step in reversed(forward)
    ]
    shown = {one["name"] for space in state["namespaces"] for one in space["interfaces"]}
    assert {step.split("/")[1].split()[0] for step in forward} <= shown
    copy = machine.sandbox.folder / "here/copy.yaml"
    copy.write_text(machine.sandbox.labkit("clone", "netns:web", "netns:cli").stdout)
    assert interfaces(machine.state(str(copy))) == interfaces(state)
    copy.unlink()
    assert machine.everything() == before


@pytest.mark.long
def test_drawings_say_what_is_set(machine: Machine) -> None:
    """The drawing has MTU, queueing discipline, offloads, rules, addresses, and what publishes ports."""
    machine.make(
        f"""{BRIDGE}
        ip netns exec web ethtool -K eth0 tx off >/dev/null
        ip -n web link set eth0 mtu 1400
        tc qdisc add dev v-cli root tbf rate 1gbit burst 64k latency 10ms
        nft add table ip nat
        nft 'add chain ip nat in {{ type nat hook prerouting priority -100; }}'
        nft 'add rule ip nat in tcp dport {{ 8080, 9000-9002 }} counter dnat to 10.77.0.3:80'
        """
    )
    ends = "netns:web netns:cli"
    done, through = machine.sandbox.commands(f"draw {ends}", f"draw {ends} --port 9001").values()
    lines = {line.strip() for line in done.stdout.splitlines()}
    [web] = (line for line in lines if "10.77.0.2/24" in line)
    assert "MTU 1400" in web
    assert "off: tx-checksumming" in web
    assert any(line.startswith("v-cli") and "qdisc tbf" in line for line in lines)
    assert "nftables ip nat in: 1 rule, digest" in done.stdout
    assert "nftables: tcp dport { 8080, 9000-9002 } dnat to 10.77.0.3:80" in lines
    assert "forward: netns:web/eth0 > host/v-web > host/v-cli > netns:cli/eth0" in lines
    passed = "host/v-web > host/br0 > host/nftables dnat 9001 to 10.77.0.3 > host/br0 > host/v-cli"
    assert f"forward: netns:web/eth0 > {passed} > netns:cli/eth0" in through.stdout.splitlines()
    # As kube-proxy writes rules: a map chooses the chain of a service, which chooses the chain of an endpoint.
    done = machine.sandbox.run("sh", "-c", SERVICE + SECOND, code=0)
    through, checked, done, asked, mermaid = machine.sandbox.commands(
        f"draw {ends} --port 80", f"check {ends} --port 80 --json", f"draw {ends}",
        f"check {ends} --address 10.78.0.3 --json", "draw netns:web host --mermaid",
    ).values()  # fmt: skip
    passed = "host/v-web > host/br0 > host/nftables dnat 80 to 10.77.0.3 > host/br0 > host/v-cli"
    assert f"forward: netns:web/eth0 > {passed} > netns:cli/eth0" in through.stdout.splitlines()
    map_leads = "a map leads port 80 of 10.96.0.10 through service, one to 10.77.0.3"
    assert f"  nftables: {map_leads}; or, chosen at random, to 10.77.0.9" in through.stdout.splitlines()
    assert any("paths to 10.77.0.9" in text for text in json.loads(checked.stdout)["not_seen"])
    # Both ends have further addresses, of which one can be asked for.
    assert "10.78.0.2 to 10.78.0.3: --address chooses" in done.stderr
    [path] = json.loads(asked.stdout)["paths"]
    assert (path["client"], path["server"], path["tcp"]) == ("10.78.0.2", "10.78.0.3", True)
    assert 'subgraph n0["netns:web"]' in mermaid.stdout


@pytest.mark.long
@pytest.mark.needs("user-mode networks")
def test_program_that_copies_is_a_hop(machine: Machine) -> None:
    """An end behind pasta is reached by a published port only, through the program: in the drawing and in the check."""
    machine.make(
        """
        ip link set lo up; ip link add nic0 up type veth peer name far0; ip link set far0 up
        ip address add 192.0.2.1/24 dev nic0
        ip route add default via 192.0.2.254; ip netns add web; ip -n web link set lo up
        ip netns add cli; ip link add to-cli up type veth peer name eth0 netns cli; ip -n cli link set eth0 up
        ip address add 198.51.100.1/24 dev to-cli; ip -n cli address add 198.51.100.2/24 dev eth0
        """
    )
    server = machine.sandbox.start("ip", "netns", "exec", "web", sys.executable, "-m", "http.server", "80")
    pasta = machine.sandbox.start(
        "pasta", "--foreground", "--quiet", "--netns-only", "--runas", "0", "--config-net", "-t", "8080:80",
        "--netns", "/run/netns/web",
    )  # fmt: skip
    assert until(lambda: machine.sandbox.run("ip", "-n", "web", "link", "show", "nic0").returncode == 0, 20)
    forward = steps(machine.state("host", "netns:web", "--port", "8080")["forward"])
    assert forward == [f"host/pasta (pid {pasta.pid}) in", "web/nic0 in"]
    report = json.loads(machine.sandbox.labkit("check", "host", "netns:web", "--json").stdout)
    assert report["findings"][0]["cause"] == "proxy in user space"
    assert list(report["paths"][0]["ports"].values()) == ["connects"]
    assert machine.sandbox.labkit("check", "host", "netns:web", "--port", "9").returncode == 2
    report = json.loads(
        machine.sandbox.labkit("check", "netns:cli", "netns:web", "--load", "--yes", "--json").stdout
    )
    [path] = report["paths"]
    assert (path["forward"]["icmp"], report["loads"]) == ("0/0", [])
    assert set(path["ports"].values()) == {"connects"}
    assert any("the load was not sent: pasta" in text for text in report["not_seen"])
    for program in (server, pasta):
        program.kill()
        program.communicate()


@pytest.mark.long
@pytest.mark.needs("clsact")
def test_bpf_program_that_decides_is_named(machine: Machine) -> None:
    """Where frames go behind a BPF program is not known, and a copy lacks it."""
    machine.make(
        BRIDGE
        + """
        for one in web.cli cli.web; do
            ip link set v-${one%.*} nomaster
            tc qdisc add dev v-${one%.*} clsact
            tc filter add dev v-${one%.*} ingress bpf bytecode '1,6 0 0 4294967295,' \\
                action mirred egress redirect dev v-${one#*.}
        done
        """
    )
    lines = [f"{what} netns:cli netns:web" for what in ("draw --json", "check --json", "clone")]
    drawn, checked, copy = machine.sandbox.commands(*lines).values()
    assert "a BPF program at tc of host v-cli decides where packets go" in one_sentence(drawn, 0)
    assert steps(json.loads(drawn.stdout)["forward"]) == ["cli/eth0 out", "host/v-cli in"]
    report = json.loads(checked.stdout)
    assert report["paths"][0]["forward"]["icmp"] not in ("0/0", "0/301")
    assert {one["where"] for one in report["findings"] if one["cause"] == "tc program"} == {
        "host v-cli",
        "host v-web",
    }
    assert "# It lacks the BPF program at tc of v-cli of host." in copy.stdout


@pytest.mark.long
def test_what_cannot_be_is_one_sentence(bridged: Machine, tmp_path: Path) -> None:
    engine = tmp_path / "bin/docker"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\nfor last; do :; done\ncase $last in idle) echo 0;; own) echo $PPID;;'
                      ' *) echo "Error: No such container: $last" >&2; exit 1;; esac\n')  # fmt: skip
    engine.chmod(0o755)
    said = {
        "draw netns:web": "netns:web is one end: name the other one",
        "draw netns:web netns:web": "netns:web is named twice",
        "draw netns:web netns:none": "netns:none does not exist, or has just ended; there are alone, cli, six, web",
        "draw netns:web netns:alone": "netns:alone has no network: it has no interface but lo that is up",
        "draw netns:web netns:six": "netns:web and netns:six have no version of IP in common",
        "draw netns:web netns:-x": "'netns:-x' is not a valid name",
        "draw netns:web 'container:a;b'": "'container:a;b' is not a valid name",
        "draw netns:web container:idle": "the docker container idle is not running: start it first",
        "draw netns:web container:own": "container:own has no network of its own: it is in that of host",
        "draw netns:web container:gone": "there is no container gone: ",
        "draw netns:web pid:4194305": "pid:4194305 does not exist, or has just ended",
        "draw netns:web netns:cli --address 10.9.9.9": "no end has the address 10.9.9.9",
        "draw netns:web netns:cli --address x": "--address: 'x' does not appear to be",
        "run datapaths topology=existing:netns:web": "'existing:netns:web' is not a network between two ends",
        "run datapaths topology=existing:netns:web+netns:cli": "this run sends tcp traffic from netns:web to",
        "run datapaths topology=existing:netns:web+netns:cli pairs=2": "pairs=2: existing:netns:web+netns:cli is one",
        "run datapaths topology=existing:netns:web+netns:cli where=vm:debian": "where=vm:debian: existing:netns:web",
        "run throughput topology=existing:netns:web+netns:cli --yes": "existing:netns:web+netns:cli takes the load of",
        "run datapaths topology=existing:netns:web+netns:cli mtu_bytes=9000 rounds=1 duration_s=1 --yes":
            "existing:netns:web+netns:cli: eth0 of netns:web has an MTU of 1500 bytes",
        "run datapaths topology=existing:netns:web+netns:six family=6 rounds=1 duration_s=1 --yes":
            "netns:web has no address of IPv6: use family=4",
    }  # fmt: skip
    path = f"{engine.parent}:{os.environ['PATH']}"
    for line, done in bridged.sandbox.commands(*said, PATH=path).items():
        assert one_sentence(done).startswith(said[line]), line


def test_no_rights_is_one_sentence(tmp_path: Path) -> None:
    """Root of a user namespace sees that there is a process, and nothing of its network."""
    with sandbox(tmp_path) as made, subprocess.Popen(["unshare", "--net", "sleep", "1000"]) as other:
        assert until(lambda: Path(f"/proc/{other.pid}/comm").read_text() == "sleep\n", 20)
        done = made.labkit("draw", f"pid:{other.pid}", "host")
        other.kill()
    assert one_sentence(done).startswith(f"this user may not enter the network namespace of pid:{other.pid}")


NETWORK = "existing:netns:web+netns:cli"
AGREED = f"""
from labkit import existing, notebook
existing.Path("{{}}", "netns:cli").allow_traffic()
notebook.run_experiment("datapaths", dict(topology=["{NETWORK}", "veth"], protocol="ping"))
"""


@pytest.mark.long
@pytest.mark.needs("iperf3", "ping")
def test_existing_network_is_an_arm(machine: Machine) -> None:
    """It is compared in the same slices and whole runs as a built one, twice at the same time, beside a program of its
    own at the usual port; a change is not applied to it. `why` sees its rules."""
    chain = "add chain ip own in { type filter hook input priority 0; }"
    rules = f"add table ip own; {chain}; add rule ip own in tcp dport 9 drop"
    machine.make(f"{BRIDGE}ip netns exec cli nft '{rules}'")
    busy = machine.sandbox.start("ip", "netns", "exec", "cli", "iperf3", "-s")
    listens = lambda: machine.sandbox.run("ip", "netns", "exec", "cli", "ss", "-Hltn", "sport", "5201").stdout  # noqa: E731
    assert until(listens, 20)
    before = machine.everything()
    words = "rounds=1 slices=3 whole_runs=1 duration_s=1 omit_s=0 observe=counters profile_rounds=1 --yes"
    change = "change=gro: offload gro on at both"
    rows = machine.sandbox.rows(f"topology={NETWORK},veth_bridge", change, *words.split())
    of = {name: [row for row in rows if row["arm"] == name] for name in {row["arm"] for row in rows}}
    for name in (NETWORK, f"{NETWORK} (again)", "veth_bridge"):
        assert [row["status"] for row in of[name]] == ["ok"] * 6, of[name]
        assert max(row["throughput_bps"] for row in of[name]) > 1e8, [
            row["throughput_bps"] for row in of[name]
        ]
    refused, *_ = of[f"{NETWORK}+gro"]
    assert (refused["status"], refused["reason"]) == (
        "unsupported", "change gro: nothing of an existing network is changed",
    )  # fmt: skip
    folder = only_run(machine.sandbox)
    assert machine.sandbox.labkit("why", f"{folder}:veth_bridge", NETWORK).returncode == 0
    page = (folder / "why.html").read_text()
    assert re.search(r"nftables ip own in.{,200}server.{,200}absent", page, re.DOTALL), re.findall(
        "nftables.{50}", page
    )
    # The parameters of a sweep may be a stranger's, so they agree to nothing; a notebook agrees to its own pair alone.
    for path, environment in (("netns:web", {"LABKIT_PROGRESS": os.devnull}), ("host", {})):
        done = machine.sandbox.run(sys.executable, "-P", "-c", AGREED.format(path), **environment)
        assert "BadInput: this run sends ping traffic from netns:web to netns:cli" in done.stderr
    assert machine.everything() == before
    busy.kill()
    busy.communicate()
    assert until(lambda: not machine.sandbox.pids(lambda words: "iperf3" in words[0]), 20)


@pytest.mark.long
@pytest.mark.needs("iperf3")
def test_requests_probe_an_existing_network_beside_a_load(bridged: Machine) -> None:
    before = bridged.everything()
    words = (f"topology={NETWORK}", "protocol=udp_rr", "load=tcp", "rounds=1", "duration_s=1", "--yes")
    row, *_again = bridged.sandbox.rows(*words, experiment="latency_under_load")
    assert (row["status"], row["generator"]) == ("ok", "sockets")
    assert 0 < row["latency_p50_s"] < 1
    assert bridged.everything() == before


@pytest.mark.long
@pytest.mark.needs("ping")
def test_end_that_ends_is_a_reason(bridged: Machine) -> None:
    """An end that goes away in the middle of a run fails its arm, with the reason, and no other one."""
    end = bridged.sandbox.start("ip", "netns", "exec", "cli", "sleep", "1000")
    network = f"existing:netns:web+pid:{end.pid}"
    running = bridged.sandbox.start(
        *LABKIT, "run", "datapaths", f"topology=veth,{network}", "protocol=ping", "rounds=2", "duration_s=2", "--yes",
        "--json",
    )  # fmt: skip
    assert until(lambda: bridged.sandbox.pids(lambda words: words[0] == "ping" and "10.77.0.3" in words), 60)
    end.kill()
    end.communicate()
    out, err = running.communicate(timeout=120)
    rows = [json.loads(line) for line in out.splitlines()]
    reason = f"pid:{end.pid} has ended, and its network with it"
    assert any(row["reason"] == reason for row in rows), (rows, err)
    assert all(row["status"] == "ok" for row in rows if row["topology"] == "veth")


# An engine with its own storage and networks, started as users start it. The limits are those that any root may set.
ENGINE = """#!/bin/sh
exec /usr/bin/podman --root {0}/s --runroot {0}/r --network-config-dir {0}/n --storage-driver vfs \\
    --cgroup-manager cgroupfs --runtime runc --events-backend none "$@"
"""
CONTAINERS = """
ip link set lo up; ip link add nic0 up type veth peer name far0; ip link set far0 up
mkdir -p $1/image/bin && cp "$(command -v busybox)" $1/image/bin/ && ln -s busybox $1/image/bin/sleep
tar -C $1/image -cf $1/image.tar . && podman import -q $1/image.tar own
podman network create --disable-dns --internal --ipv6 --subnet 10.89.1.0/24 --subnet fd89::/64 inner
podman network create --disable-dns --driver macvlan --opt parent=nic0 --subnet 10.89.2.0/24 apart
start() { podman run -d --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$@" own /bin/sleep 1000; }
nets() { echo --network podman:ip=10.88.0.$1 --network inner:ip=10.89.1.$1,ip6=fd89::$1 --network apart:ip=10.89.2.$1; }
start --name web $(nets 3)
start --name cli $(nets 4) -p 8080:80
start --name alone --network none
start --name inside --network host
start --name idle && podman stop -t 0 idle
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Make containers of podman once, for tests that leave all of it as it is."""
    with (
        tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder,  # its sockets need short paths
        started(tmp_path_factory.mktemp("podman")) as made,
    ):
        engine = Path(folder, "bin/podman")
        engine.parent.mkdir()
        engine.write_text(ENGINE.format(folder))
        engine.chmod(0o755)
        made.sandbox.environment["PATH"] = f"{engine.parent}:{os.environ['PATH']}"
        try:
            made.make(CONTAINERS, "sh", folder)
            before = made.everything()
            yield made
            assert made.everything() == before
        finally:
            made.sandbox.run("podman", "rm", "--all", "--force", "--time", "0")


PODMAN = pytest.mark.needs("podman", "runc", "busybox", "nft", "macvlan", "iperf3")


@pytest.mark.long
@PODMAN
def test_containers_of_podman(podman: Machine) -> None:
    """Podman's bridge, its rules and published ports are drawn; what has no network of its own is one sentence."""
    both = "container:web container:cli"
    pid = podman.sandbox.run("podman", "inspect", "--format", "{{.State.Pid}}", "web").stdout.strip()
    other = podman.sandbox.folder / "other/podman"
    other.parent.mkdir()
    other.write_text(ENGINE.format(other.parent))
    other.chmod(0o755)
    said = {
        "container:alone": "container:alone has no network: it has no interface but lo that is up",
        "container:inside": "container:inside has no network of its own: it is in that of host",
        "container:idle": "the podman container idle is not running: start it first",
        "container:web": "container:web is named twice",
        f"pid:{pid}": f"container:web and pid:{pid} share one network namespace",
    }
    lines = {f"draw container:web {end}": says for end, says in said.items()}
    drawn, *refused = podman.sandbox.commands(f"draw {both} --json --address 10.88.0.4", *lines).items()
    state = json.loads(drawn[1].stdout)
    web, out, back, cli = state["forward"]
    assert (web["namespace"], cli["namespace"]) == ("container:web", "container:cli")
    assert out["namespace"] == back["namespace"] == "host"
    [host] = (space for space in state["namespaces"] if space["name"] == "host")
    assert {one["kind"] for one in host["interfaces"]} == {"veth", "bridge"}
    published = "nftables: tcp dport 8080 dnat to 10.88.0.4"
    assert any(line.startswith(published) for line in host["published"]), host["published"]
    for line, done in refused:
        assert one_sentence(done).startswith(lines[line]), line
    path = f"{other.parent}:{os.environ['PATH']}"  # an engine with another storage, as another user's
    sentence = one_sentence(podman.sandbox.labkit("check", *both.split(), PATH=path))
    assert sentence.startswith("there is no container web: ")
    assert sentence.endswith("another user's container is visible to that user's engine only: name a process of it,"
                             " pid:NUMBER")  # fmt: skip


@PODMAN
@pytest.mark.long
@pytest.mark.parametrize("during", ["check", *also("exhaustive", "run")])  # above, an end of a run ends
def test_container_that_stops(during: str, podman: Machine) -> None:
    """A container that its engine stops in the middle is the reason; what was measured before stays, and nothing of
    the machine is changed."""
    before = podman.everything()
    # An address of its own: others know the MAC address of the one that has just ended.
    address = {"check": "10.88.0.9", "run": "10.88.0.10"}[during]
    brief = (
        f"podman run -d --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --name brief --ip {address} own"
    )
    podman.sandbox.run(*brief.split(), "/bin/sleep", "1000", code=0)
    words = {
        "check": "check container:web container:brief --load --seconds 9 --yes --json",
        "run": "run datapaths topology=veth,existing:container:web+container:brief rounds=2 duration_s=2 --yes --json",
    }[during]
    running = podman.sandbox.start(*LABKIT, *words.split())
    assert until(lambda: podman.sandbox.pids(lambda words: "iperf3" in words[0] and address in words), 60)
    podman.sandbox.run("podman", "rm", "--force", "--time", "0", "brief", code=0)
    stopped_s = time.monotonic()
    out, err = running.communicate(timeout=120)
    waited_s = time.monotonic() - stopped_s
    reason = "container:brief has ended, and its network with it"
    assert "Traceback" not in err
    if during == "check":
        assert (running.returncode, out) == (2, "")
        assert waited_s < 8  # iperf3 would wait for 19 s
        assert err.splitlines()[1:] == [f"labkit: {reason}"]  # after the load's plan
    else:
        rows = [json.loads(line) for line in out.splitlines()]
        assert {row["status"] for row in rows if row["topology"] == "veth"} == {"ok"}
        assert {row["reason"] for row in rows if row["status"] != "ok"} == {reason}, (rows, err)
    assert until(lambda: podman.everything() == before, 20, step_s=1)


@pytest.mark.long
@PODMAN
def test_networks_of_podman(podman: Machine) -> None:
    """Of several networks of a container an address chooses one: an internal one, with IPv6, and one on a NIC."""
    check = "check container:web container:cli --json --address"
    lines = [f"{check} {address}" for address in ("10.88.0.4", "10.89.1.4", "fd89::4", "10.89.2.4")]
    reports = [json.loads(done.stdout) for done in podman.sandbox.commands(*lines).values()]
    for report, middle in zip(reports, (3, 3, 3, 1), strict=True):
        [path] = report["paths"]
        assert path["tcp"]
        assert path["forward"] == path["back"] == {"icmp": "301/301", "udp": "301/301", "mtu_bytes": 1500}
        first, *between, last = path["interfaces"]
        assert (first.split()[0], last.split()[0]) == ("container:web", "container:cli")
        assert [one.split()[0] for one in between] == ["host"] * middle, path["interfaces"]
        assert report["findings"] == []
    assert between == ["host nic0"]


@pytest.mark.long
@PODMAN
@pytest.mark.needs("ping")
def test_attach_to_containers_of_podman(podman: Machine) -> None:
    """On a new bridge, with a gateway, and on a NIC. Afterwards everything is as before, the default route as well."""
    done = [*podman.sandbox.commands(
        "attach web --veth br7 --create --interface eth7 --address 10.7.0.2/24 --gateway 10.7.0.1",
        "attach alone --veth br7 --address 10.7.0.1/24 --mac 02:00:00:00:00:77",
        "attach alone --wait 5",
        "attach alone --macvlan nic0 --interface eth8 --address 10.88.7.9/24",
        "attach cli --macvlan nic0 --interface eth8 --address 10.88.7.8/24",
    ).values()]  # fmt: skip
    assert [one.returncode for one in done] == [0] * 5, done
    assert re.search(r"cli also has 10\.88\.0\.4/16 at eth\d, in the same network", done[-1].stderr)
    assert not done[0].stderr + done[1].stderr

    def inside(container: str, *argv: str) -> str:
        """Return what a program of this machine prints in a container's network namespace."""
        asked = ("podman", "inspect", "--format", "{{.State.Pid}}", container)
        pid = podman.sandbox.run(*asked, code=0).stdout.strip()
        return podman.sandbox.run("nsenter", f"--target={pid}", "--net", *argv, code=0).stdout

    for container, address in (("web", "10.7.0.1"), ("cli", "10.88.7.9")):
        inside(container, "ping", "-nc1", "-w20", address)
    assert "lladdr 02:00:00:00:00:77" in inside("web", "ip", "neigh")
    way = ("ip", "route", "get", "192.0.2.1")
    assert "via 10.7.0.1 dev eth7" in inside("web", *way)
    refused = {
        "attach web --veth br7": "the container web already has an interface eth1: choose another --interface",
        "attach idle --veth br7": "the podman container idle is not running: start it first",
        "attach inside --veth br7": "container:inside has no network of its own: it is in that of host",
        "attach nosuch --veth br7": "there is no container nosuch",
        "attach web --detach --interface eth0": "labkit has not added eth0 to the container web",
        "attach web --detach --interface eth9": "web has no interface eth9; it has lo, ",
    }
    for line, one in podman.sandbox.commands(*refused).items():
        assert one_sentence(one).startswith(refused[line]), line
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")
    brief = (*limits, "--name", "brief", "--network", "none", "own", "/bin/sleep", "1000")
    podman.sandbox.run("podman", "run", "-d", *brief, code=0)
    waits = podman.sandbox.start(*LABKIT, "attach", "brief", "--wait", "300")
    about = Path(f"/proc/{waits.pid}")
    files = ("ls", "-l", about / "fd")
    opened = lambda: "net:[" in subprocess.run(files, capture_output=True, text=True).stdout  # noqa: E731
    # Before it is labkit, the process is nsenter, which has opened a namespace as well.
    assert until(lambda: b"nsenter" not in (about / "cmdline").read_bytes() and opened(), 60)
    podman.sandbox.run("podman", "rm", "--force", "--time", "0", "brief", code=0)
    said = waits.communicate(timeout=60)[1]
    assert "the container brief has ended" in said, said
    names = {"web": ("eth7",), "alone": ("eth1", "eth8"), "cli": ("eth8",)}
    lines = [f"attach {who} --detach --interface {one}" for who, own in names.items() for one in own]
    assert not any(one.returncode for one in podman.sandbox.commands(*lines).values())
    assert "eth7" not in inside("web", *way)
    podman.sandbox.run("ip", "link", "delete", "br7", code=0)
