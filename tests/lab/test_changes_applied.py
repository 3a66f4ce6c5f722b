"""Changes on a real kernel: values before and after, changes without effect, and changes that the kernel does not
support."""

import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import ROOT
from sandbox import Row, Sandbox, one_sentence, sandbox

from labkit.common import run_folder
from labkit.common.errors import Unsupported
from labkit.measure import topologies
from labkit.measure.experiments import changes
from labkit.measure.traffic import ping
from labkit.system import process

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("user namespaces", "iperf3", "ip", "ping", "ethtool", "veth", "bridge", "nft"),
]

RULES = "table inet t {\n  chain c {\n    type filter hook input priority 0;\n    tcp dport 9 drop\n  }\n}\n"
CHANGES = [
    "gro: offload gro on at server",
    "scattered: offload sg off at client",
    "rules: nftables {rules} at server",
    "tracked: conntrack on at server",
    "hundred: rules 100 at server",
    "filter: sysctl net.ipv4.conf.all.rp_filter=1 at both",
    "tbf: qdisc tbf rate 100mbit burst 64kb latency 10ms at client",
    "small: mtu 1400 at both",
    "port: offload tx-checksumming off at between:port0",
    "many: parameter streams=2 and parameter mtu_bytes=1400",
    "steer: rps 0 at server",
    "queue: txqueuelen 10 at client",
    "polled: offload gro on at server and napi threaded 1 at server",
    "unpolled: napi threaded 1 at server",
    "big: big_tcp 196608 at both and big_tcp 196608 at between",
    "six: parameter family=6",
    "ways: route 192.0.2.0/24 via 10.2.0.1 at client and neighbour 10.2.0.9 02:00:00:00:00:09 at client",
    "picked: tc_filter ingress protocol ip prio 1 u32 match ip dport 9 0xffff flowid 1:1 at server",
    "watched: monitor one_in:10 at between:port1",
    "none: offload gro off at server",
    "broken: nftables {broken} at server",
    "silent: nftables {silent} at server",
    "large: mtu 9000 at both",
    "jumbo: mtu 9000 at both and mtu 9000 at between",
    "unknown: congestion nonesuch",
]


@pytest.fixture(scope="module")
def rows(machine: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Measure one short round of all changes on one topology."""
    folder = tmp_path_factory.mktemp("rules")
    files = {
        "rules": RULES,
        "broken": "table inet t { nonsense }\n",
        "silent": RULES.replace("tcp dport 9 drop", "drop"),
    }
    for name, text in files.items():
        (folder / f"{name}.nft").write_text(text)
    paths = {name: folder / f"{name}.nft" for name in files}
    change = "; ".join(CHANGES).format(**paths)
    return machine.rows(f"change={change}", "slices=1", "whole_runs=0", code=2)


def effects(rows: list[Row], change: str) -> list[tuple[str, str, str, str]]:
    """Return where a setting changed, its name, and its values before and after. All rows of the arm must agree."""
    own = [row for row in rows if row["change"] == change]
    assert own
    assert [row["reason"] for row in own if row["status"] != "ok"] == []
    assert all(row["changed"] == own[0]["changed"] for row in own)
    return [(one["at"], one["setting"], one["before"], one["after"]) for one in own[0]["changed"]]


def refused(rows: list[Row], change: str) -> tuple[str, str]:
    [row] = [row for row in rows if row["change"] == change]
    return row["status"], row["reason"]


def test_applied_changes_are_read_back_from_the_kernel(rows: list[Row]) -> None:
    assert ("server", "generic-receive-offload", "off", "on") in effects(rows, "gro")
    # The kernel turns segmentation offloads off as well; what was requested comes first.
    assert effects(rows, "scattered")[0] == ("client", "scatter-gather", "on", "off")
    assert effects(rows, "filter") == [
        (role, "net.ipv4.conf.all.rp_filter", "0", "1") for role in ("client", "server")
    ]
    assert effects(rows, "small") == [(role, "mtu_bytes", "1500", "1400") for role in ("client", "server")]
    assert effects(rows, "queue") == [("client", "txqueuelen", "1000", "10")]
    assert effects(rows, "polled")[-1] == ("server", "threaded", "0", "1")
    assert ("client", "gso_ipv4_max_size", "65536", "196608") in effects(rows, "big")
    assert effects(rows, "six") == [("load", "family", "4", "6")]
    [(at, setting, before, after)] = effects(rows, "rules")
    assert (at, setting, before) == ("server", "nftables ruleset", "none")
    assert after.startswith("1 line of rules, sha256:")
    assert effects(rows, "hundred")[0][3].startswith("100 lines of rules")
    assert {at for at, _, _, _ in effects(rows, "tracked")} == {"server"}
    [(_, _, before, after)] = effects(rows, "tbf")
    assert before == "noqueue root"
    assert after.startswith("tbf root rate 100Mbit")
    assert {setting for _, setting, _, _ in effects(rows, "ways")} == {"routes", "neighbour 10.2.0.9"}
    assert ("between", "tx-checksumming", "on", "off") in effects(rows, "port")
    [(_, setting, before, after)] = effects(rows, "picked")
    assert (setting, before) == ("filters ingress", "none")
    assert "u32" in after
    sockets = "on port1 of protocol 0x0003"
    assert effects(rows, "watched") == [("between", "packet sockets", "none", sockets)]
    assert [row["changed"] for row in rows if row["change"] is None] == [None] * 2


def test_arms_have_their_own_parameters_and_one_control(rows: list[Row]) -> None:
    assert set(effects(rows, "many")) == {
        ("load", "streams", "1", "2"),
        ("load", "mtu_bytes", "1500", "1400"),
    }
    assert {(row["streams"], row["mtu_bytes"]) for row in rows if row["change"] == "many"} == {(2, 1400)}
    slices = {row["arm"] for row in rows if row["method"] == "slice"}
    assert {"veth_bridge", "veth_bridge (again)", "veth_bridge+gro"} <= slices
    assert [row["role"] for row in rows if row["arm"] == "veth_bridge (again)"] == ["control"]


def test_shaper_limits_only_its_arm(rows: list[Row]) -> None:
    """All arms are established meanwhile: a slice that counted more than its own arm would exceed the shaper's rate."""
    speeds = {row["change"]: row["throughput_bps"] for row in rows if row["method"] == "slice"}
    assert speeds["tbf"] < 0.2e9 < speeds[None]


def test_change_without_effect_leaves_an_equal_arm(rows: list[Row]) -> None:
    status, reason = refused(rows, "none")
    assert status == "equal"
    assert reason.startswith("it equals veth_bridge by construction: ")
    assert "has no effect: the kernel still reports generic-receive-offload off" in reason


def test_change_without_effect_is_refused_before_anything_is_measured(machine: Sandbox) -> None:
    words = ("change=none: offload gro off at server", "without_effect=refuse")
    done = machine.labkit("run", "datapaths", "topology=veth_bridge", *words)
    assert "veth_bridge+none: change none: offload at server0:eth0 has no effect" in one_sentence(done)
    assert len(list((machine.data / "datapaths").iterdir())) == 1  # the run of the other tests


def test_missing_or_refused_setting_is_reported(rows: list[Row]) -> None:
    status, reason = refused(rows, "broken")
    assert status == "failed"
    assert "syntax error" in reason
    status, reason = refused(rows, "silent")
    assert status == "failed"
    assert "with the change silent client0 gets no answer from server0" in reason
    assert "rules have to accept ICMP" in reason
    status, reason = refused(rows, "unknown")
    assert (status, "no TCP congestion control nonesuch" in reason) == ("unsupported", True)
    status, reason = refused(rows, "large")
    assert status == "failed"
    assert "a ping of 9000 bytes" in reason
    assert ("client", "mtu_bytes", "1500", "9000") in effects(rows, "jumbo")
    status, reason = refused(rows, "steer")
    assert status == "unsupported"
    assert "rps 0 needs root" in reason
    status, reason = refused(rows, "unpolled")  # without GRO, a veth has no NAPI
    assert (status, "lacks threaded=1 of server0:eth0" in reason) == ("unsupported", True)


def test_another_build_is_started_by_its_arm_alone_and_is_gated(machine: Sandbox, tmp_path: Path) -> None:
    (build := tmp_path / "iperf3").write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/log\nexec iperf3 "$@"\n')
    build.chmod(0o755)
    folder = machine.data / "builds"
    words = ("topology=veth", f"change=new: program iperf3={build}", "rounds=2", "slices=2", "whole_runs=0")
    gate = ("--fail-if", "slower>99%", "--junit", str(tmp_path / "gate.xml"), "--folder", str(folder))
    done = machine.labkit("run", "datapaths", *words, *gate)
    word = done.stdout.splitlines()[-1].partition(":")[0]
    # The noise of two rounds decides which.
    assert (done.returncode, word) in ((0, "not worse"), (4, "cannot tell")), done.stderr
    # A server for each round, and none of other arms.
    assert (tmp_path / "log").read_text().split().count("-s") == 2
    [(at, setting, _, after)] = effects(run_folder.read_rows(folder), "new")
    assert (at, setting) == ("both", "iperf3")
    assert f", {build}, sha256:" in after
    assert "new" in (tmp_path / "gate.xml").read_text()


@pytest.mark.needs("root", "vxlan")
def test_steering_queues_and_programs(tmp_path: Path) -> None:
    """Steering and BPF programs need root outside of a user namespace."""
    wanted = (
        "steer: rps 0 at server", "queues: channels rx 2 tx 2 at client and xps 0 at client",
        "rings: ring rx 64 at client", "later: napi gro_flush_timeout 20000 napi_defer_hard_irqs 2 at server",
        "xdp: xdp pass at server", "arriving: tc_bpf pass at server", "leaving: tc_bpf egress pass at client",
        "reno: congestion reno", "plain: qdisc pfifo_fast at client", "fair: qdisc fq_codel limit 1000 at client",
    )  # fmt: skip
    with sandbox(tmp_path, user=False) as machine:
        result = machine.rows(f"change={'; '.join(wanted)}", "slices=1", "whole_runs=0")
        tunnel = machine.rows("topology=vxlan", "change=xdp: xdp pass at server", "slices=1", "whole_runs=0")
    assert effects(result, "steer") == [("server", "rps rx-0", "0", "1")]
    channels = [("client", f"channels {way}", "1", "2") for way in ("rx", "tx")]
    assert effects(result, "queues") == [
        *channels,
        *(("client", f"xps tx-{one}", "0", "1") for one in (0, 1)),
    ]
    assert refused(result, "rings")[0] == "unsupported"
    polled = [("gro_flush_timeout", "20000"), ("napi_defer_hard_irqs", "2")]
    assert effects(result, "later") == [("server", name, "0", value) for name, value in polled]
    [(at, setting, before, after)] = effects(result, "xdp")
    assert (at, setting, before) == ("server", "xdp", "none")
    assert re.fullmatch(r"program of tag \w+", after)
    # A VXLAN's driver has no XDP, so the kernel runs the program later, at a cost that XDP is to avoid.
    assert re.fullmatch(r"program of tag \w+, generic", effects(tunnel, "xdp")[0][3])
    for change, role, hook in (("arriving", "server", "ingress"), ("leaving", "client", "egress")):
        [(at, setting, before, after)] = effects(result, change)
        assert (at, setting, before) == (role, f"filters {hook}", "none")
        assert "program.o:[tc] direct-action" in after
    [(at, setting, _, after)] = effects(result, "reno")
    assert (at, setting, after) == ("load", "congestion", "reno")
    [(at, _, before, after)] = effects(result, "plain")
    assert (at, before) == ("client", "noqueue root")
    assert after.startswith("pfifo_fast root")
    if "unsupported" in {row["status"] for row in result if row["change"] == "fair"}:  # a kernel without it
        assert "lacks qdisc fq_codel limit 1000" in refused(result, "fair")[1]
    else:
        assert effects(result, "fair")[0][3].startswith("fq_codel root limit 1000p")


@pytest.mark.needs("vxlan")
def test_mtu_of_the_path_under_a_tunnel(machine: Sandbox) -> None:
    """The sweep of tunnels has a larger and a smaller one, which takes effect and lets packets pass."""
    arms = re.findall(r'"(mtu-[^"]+)"', (ROOT / "params/tunnel_offloads.yaml").read_text())
    result = machine.rows("topology=vxlan", f"change={'; '.join(arms)}", "slices=1", "whole_runs=0")
    assert {row["status"] for row in result} == {"ok"}
    for change, after in (("mtu-9000-below", "9000"), ("mtu-1500-below", "1500")):
        at_both = [(at, "mtu_bytes", "1550", after) for at in ("client", "server")]
        assert effects(result, change)[:2] == at_both


def test_bad_change_is_one_sentence(machine: Sandbox) -> None:
    says = {
        "nftables missing.nft at server": "missing.nft",
        "sysctl net.ipv4.nothing=1": "at=''",
        "sysctl net.ipv4.nothing=1 at server": "this kernel has no sysctl net.ipv4.nothing",
        "sysctl net.core.netdev_max_backlog=9 at server": "machine_sysctl net.core.netdev_max_backlog=VALUE",
    }
    misspelt = {  # names of a built topology, which are refused before anything is measured
        "mtu 1400 at router0:tob": "veth_bridge has nothing at 'router0:tob': choose ",
        "mtu 1400 at client0:eht0": "(did you mean client0:eth0?)",
        "offload generic-receive-offlod off at both": "(did you mean generic-receive-offload?)",
        "sysctl net.ipv4.tcp_sackk=0 at client": "(did you mean tcp_sack?)",
    }
    words_of = says | misspelt
    lines = {f"run datapaths 'change=x: {change}' duration_s=1 omit_s=0": change for change in words_of}
    for line, done in machine.commands(*lines).items():
        assert done.returncode in ((2,) if lines[line] in misspelt else (0, 2)), line
        assert words_of[lines[line]] in " ".join((done.stderr + done.stdout).split())
        assert "Traceback" not in done.stderr


def test_place_of_one_of_several_topologies_is_a_row_of_the_others(machine: Sandbox) -> None:
    result = machine.rows(
        "topology=veth,veth_bridge", "change=x: txqueuelen 500 at between:port0", "slices=1", "whole_runs=0"
    )
    statuses = {row["topology"]: row["status"] for row in result if row["change"] == "x"}
    assert statuses == {"veth": "unsupported", "veth_bridge": "ok"}


FUNCTION = """
from pathlib import Path
import re
import sys
from labkit.runner import run

def forward(topology):
    for space in topology.namespaces:
        space.sysctl("ipv4/ip_forward", 1)

def sleeper(topology):
    import subprocess
    from labkit.system import machine
    names = [name for *_, name in machine.pids_by_namespace()]
    assert "sleep" not in names, "the program of an earlier round still runs"
    subprocess.Popen([*topology.pairs[0].server.namespace.prefix, "sleep", "60"])
    while "sleep" not in [name for *_, name in machine.pids_by_namespace()]:
        pass

run.measure("datapaths", {"change": [forward, sleeper], "slices": 1, "whole_runs": 0}, Path(sys.argv[1]))
"""


def test_topology_function_as_a_change(machine: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(FUNCTION)
    machine.run(sys.executable, str(script), str(tmp_path / "run"), code=0)
    rows = run_folder.read_rows(tmp_path / "run")
    assert ("server", "sysctl net.ipv4.ip_forward", "0", "1") in effects(rows, "forward")
    [(at, setting, _before, after)] = effects(rows, "sleeper")
    assert (at, setting) == ("server", "programs")
    assert "sleep" in after.split(", ")


ASYMMETRIC = """
name: asymmetric
pairs: [[a, b]]
parts:
  - {type: node, name: a, container: true}
  - {type: node, name: b, container: true}
  - {type: node, name: r1, forwards: true}
  - {type: node, name: r2, forwards: true}
  - {type: cable, one: [a, eth0, 10.1.0.1/24], other: [r1, toa, 10.1.0.254/24]}
  - {type: cable, one: [a, eth1, 10.2.0.1/24], other: [r2, toa, 10.2.0.254/24]}
  - {type: cable, one: [b, eth0, 10.3.0.1/24], other: [r1, tob, 10.3.0.254/24]}
  - {type: cable, one: [b, eth1, 10.4.0.1/24], other: [r2, tob, 10.4.0.254/24]}
  - {type: route, at: a, to: 10.3.0.0/24, via: 10.1.0.254}
  - {type: route, at: b, to: 10.1.0.0/24, via: 10.4.0.254}
  - {type: route, at: r2, to: 10.1.0.0/24, via: 10.2.0.1}
"""
TENTH = RULES.replace("tcp dport 9 drop", "udp dport 5201 numgen random mod 10 < 1 drop")
UDP = "protocol=udp length_bytes=1372 rate_bps=60e6 duration_s=1 omit_s=0 rounds=1 whole_runs=1"


def test_losses_are_doubts_with_their_place(machine: Sandbox, tmp_path: Path) -> None:
    """A shaper at the client and a firewall at the server lose datagrams, and no receiver is overloaded."""
    (tmp_path / "tenth.nft").write_text(TENTH)
    change = (
        f"narrow: qdisc tbf rate 20mbit burst 5kb limit 10kb at client; tenth: nftables {tmp_path}/tenth.nft at server;"
        " small: mtu 1300 at between"
    )
    result = machine.rows(f"change={change}", *UDP.split(), code=2)
    doubts = {row["change"]: row["doubts"] or "" for row in result if row["method"] == "whole"}
    # A receiver that waits for a CPU may lose some, too.
    lost = r"of the datagrams were lost, (9\d|100) % of these at client: IP to eth0 \(qdisc tbf dropped\)"
    assert re.search(lost, doubts["narrow"]), doubts["narrow"]
    found = re.search(
        r"([\d.]+) % of the datagrams were lost, (\d+) % of these at server: IP(;|$)", doubts["tenth"]
    )
    assert found, doubts["tenth"]
    assert 8 < float(found[1]) * float(found[2]) / 100 < 13, doubts["tenth"]
    status, reason = refused(result, "small")
    assert status == "failed"
    assert "a ping of 1400 bytes, which is the size of the load's packets" in reason


def test_a_sysctl_that_refuses_the_path_is_named(machine: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "asymmetric.yaml").write_text(ASYMMETRIC)
    change = "change=strict: sysctl net.ipv4.conf.all.rp_filter=1 at both"
    result = machine.rows(change, f"topology={tmp_path}/asymmetric.yaml", "slices=1", "whole_runs=0", code=2)
    _, reason = refused(result, "strict")
    assert "a gets no answer from b" in reason
    assert reason.endswith("the kernel refused packets at b: TcpExt IPReversePathFilter")


def test_flows_whose_first_datagram_is_lost_start_again(machine: Sandbox, tmp_path: Path) -> None:
    """iperf3 begins a flow of UDP with one datagram and waits 30 s for its answer, which is lost here three times."""
    three = "udp dport 5201 limit rate 1/hour burst 3 packets drop"
    (tmp_path / "three.nft").write_text(RULES.replace("tcp dport 9 drop", three))
    (tmp_path / "all.nft").write_text(RULES.replace("tcp dport 9 drop", "udp dport 5201 drop"))
    change = f"three: nftables {tmp_path}/three.nft at server; all: nftables {tmp_path}/all.nft at server"
    result = machine.rows(f"change={change}", *UDP.split(), code=2)
    [row] = [row for row in result if row["change"] == "three" and row["method"] == "whole"]
    assert row["status"] == "ok", row["reason"]
    assert (
        "the flows were started 4 times: a datagram with which one begins may have been lost" in row["doubts"]
    )
    assert row["window_s"] > 0.7
    status, reason = refused(result, "all")
    assert status == "failed"
    assert reason == (
        "not every flow carried data, though the flows were started 4 times; of what was lost, 100 % at server: IP"
    )


@pytest.mark.needs("root")
@pytest.mark.parametrize(("name", "family"), [("veth_routed", 4), ("veth_routed", 6), ("veth_bridge", 4)])
def test_rules_between_the_ends_meet_what_is_forwarded(name: str, family: int) -> None:
    """A bridge hands no frame to IP's rules, unless br_netfilter does."""
    [change] = changes.parse("few: rules 3 at between")
    with topologies.build(name, topologies.Spec(family=family)) as net:
        between = net.namespaces[-1]
        for program in ("iptables", "ip6tables"):
            with suppress(OSError):
                between.sysctl(f"bridge/bridge-nf-call-{program}", 0)
        if name == "veth_bridge":
            with pytest.raises(Unsupported, match="frames pass it without IP: write `at server`"):
                changes.apply(change, net)
            return
        changes.apply(change, net)
        process.output([*between.prefix, "nft", "insert rule inet labkit_rules through counter"])
        assert ping.reachable(net.pairs, 1500, family) is None
        listed = process.output([*between.prefix, "nft", "list chain inet labkit_rules through"])
        assert re.search(r"counter packets [1-9]", listed)
        assert listed.count("ip saddr 192.0.2." if family == 4 else "ip6 saddr 2001:db8::") == 3
