"""User-defined networks on the running kernel: VXLAN alone, in its three configurations."""

import json
from pathlib import Path

import example_networks
import msgspec
import pytest
from conftest import ROOT, Need, met
from sandbox import one_sentence, sandbox, until

from labkit import live
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.packets import pcapng
from labkit.common.topology_state import InterfaceState
from labkit.measure.topologies import Network
from labkit.measure.topologies.network import settings as network_settings
from labkit.measure.topologies.network.parts import Cable, CableEnd, Node, Route

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("namespaces", "ip", "ping", "veth", "bridge", "vxlan", "iperf3"),
]


def ping(net: live.LiveTopology, source: str, target: str, payload_bytes: int) -> str:
    words = ("ping", "-n", "-c1", "-i0.2", "-w15", "-Mdo", f"-s{payload_bytes}", target)
    return net.endpoints[source].run(*words)


def remotes(net: live.LiveTopology, node: str, mac: str | None = None) -> list[str]:
    """Return the remote addresses that a node's tunnel uses for this MAC address; None stands for unknown addresses."""
    report = json.loads(net.endpoints[node].run("bridge", "-j", "fdb", "show", "dev", "tun"))
    return sorted(one["dst"] for one in report if one["mac"] == (mac or "00:00:00:00:00:00") and "dst" in one)


def mac_of(net: live.LiveTopology, node: str, name: str) -> str:
    [result] = [one.mac for one in interfaces(net, node) if one.name == name]
    return str(result)


def interfaces(net: live.LiveTopology, node: str) -> list[InterfaceState]:
    return next(space.interfaces for space in net.state.namespaces if space.name == node)


def test_vxlan_over_a_router() -> None:
    with live.build(
        example_networks.routed({"kind": "vxlan", "id": 30, "port": 4900, "learning": False})
    ) as net:
        assert [end.name for end in net.endpoints.values() if end.address] == ["c1", "c2"]
        assert "ttl=64" in ping(net, "c1", "10.0.0.2", 1450 - 28)
        with pytest.raises(Failed, match=r"(?i)message too long"):
            ping(net, "c1", "10.0.0.2", 1450 - 27)
        [tunnel] = [one for one in interfaces(net, "n1") if one.name == "tun"]
        assert (tunnel.mtu_bytes, tunnel.master, tunnel.kind) == (1450, "br", "vxlan")
        assert (tunnel.tunnel.id, tunnel.tunnel.remotes, tunnel.tunnel.port) == (30, ["192.168.2.1"], 4900)
        [bridge] = [one for one in interfaces(net, "n1") if one.name == "br"]
        assert bridge.mtu_bytes == 1450
        far = mac_of(net, "c2", "eth0")
        assert remotes(net, "n1", far) == [], "it learns no address"


@pytest.mark.parametrize(("group", "outside"), [(False, 4), (True, 6)])
def test_vxlan_with_three_endpoints(group: bool, outside: int) -> None:
    to = ("239.1.1.1" if outside == 4 else "ff0e::1:1") if group else None
    own = "192.168.0.{}" if outside == 4 else "fd00:9::{}"
    with live.build(example_networks.switched(to, outside=outside)) as net:
        mtu_bytes = 1450 if outside == 4 else 1430
        for source, target in (("c1", "10.0.0.2"), ("c1", "10.0.0.3"), ("c3", "10.0.0.2")):
            assert "ttl=64" in ping(net, source, target, mtu_bytes - 28)
        assert remotes(net, "n1") == ([to] if to else [own.format(2), own.format(3)])
        assert remotes(net, "n1", mac_of(net, "c3", "eth0")) == [own.format(3)]


def test_routes_over_links_without_carrier_are_ignored() -> None:
    """IPv6 has a sysctl of its own for it."""
    ends = [Node("a", container=True, ignores_linkdown=True), Node("b", container=True)]
    cables = [
        Cable(CableEnd("a", f"eth{n}", f"fd00:{n}::1/64"), CableEnd("b", f"eth{n}", f"fd00:{n}::2/64"))
        for n in (1, 2)
    ]
    routes = [Route("a", "fd00:9::/64", via=f"fd00:{n}::2", metric=n) for n in (1, 2)]
    with live.build(Network("two_ways", (*ends, *cables, *routes), (("a", "b"),))) as net:

        def goes_by(name: str) -> bool:
            return f"dev {name} " in net.endpoints["a"].run("ip", "-6", "route", "get", "fd00:9::1")

        assert goes_by("eth1")
        net.endpoints["b"].run("ip", "link", "set", "eth1", "down")
        assert until(lambda: goes_by("eth2"), 5)


WAN = (
    {"type": "node", "name": "a", "container": True},
    {"type": "node", "name": "b", "container": True},
    {"type": "cable", "one": ["a", "eth0", "10.0.0.1/24"], "other": ["b", "eth0", "10.0.0.2/24"]},
)


def wan(**impairment: object) -> Network:
    parts = [*WAN, {"type": "impairment", "at": "a", "interface": "eth0", **impairment}]
    return msgspec.convert({"name": "wan", "pairs": [["a", "b"]], "parts": parts}, Network)


def test_an_impaired_cable_has_its_rate_and_its_delay() -> None:
    with live.build(wan(rate_bps=8e6)) as net:
        [bucket] = json.loads(net.endpoints["a"].run("tc", "-j", "qdisc", "show", "dev", "eth0"))
        assert (bucket["kind"], bucket["options"]["rate"]) == ("tbf", 1_000_000)  # bytes per second
        assert "ttl=64" in ping(net, "a", "10.0.0.2", 56)
    for wrong, words in (({}, "does nothing"), ({"loss": 0.1, "jitter_s": 0.1}, "need delay_s")):
        with pytest.raises(BadInput, match=words), live.build(wan(**wrong)):
            pass
    if not met("netem"):
        with (
            pytest.raises(Unsupported, match="needs netem"),
            live.build(wan(delay_s=0.02)),
        ):
            pass
        return
    with live.build(wan(delay_s=0.02)) as net:
        assert float(ping(net, "a", "10.0.0.2", 56).split("time=")[1].split()[0]) >= 20


def test_settings_are_those_of_the_nodes(need: Need) -> None:
    """Offloads, sysctls and rules are in the namespaces of the network, and only there; both ends of a cable may
    differ."""
    need("nft", "ethtool")
    text = "table inet own {\n chain in {\n type filter hook input priority 0;\n udp dport 9 drop\n }\n}\n"
    settings = [
        {"type": "offloads", "at": "a", "interface": "eth0", "disable": ["tso"], "enable": ["gro"]},
        {"type": "sysctl", "at": "a", "name": "net.ipv4.conf.eth0.rp_filter", "value": 1},
        {"type": "sysctl", "at": "a", "name": "net.ipv4.tcp_rmem", "value": "4096 8192 16384"},
        {"type": "rules", "at": "b", "text": text},
    ]
    parts = [*WAN[:2], {**WAN[2], "mtu_bytes": [1500, 1400]}, *settings]
    described = {"name": "wan", "pairs": [["a", "b"]], "parts": parts, "as_is": True}
    with live.build(msgspec.convert(described, Network)) as net:
        a, b = net.endpoints["a"], net.endpoints["b"]
        features = a.run("ethtool", "-k", "eth0")
        assert "tcp-segmentation-offload: off" in features
        assert "generic-receive-offload: on" in features
        assert a.run("sysctl", "-n", "net.ipv4.conf.eth0.rp_filter") == "1\n"
        assert a.run("sysctl", "-n", "net.ipv4.tcp_rmem").split() == ["4096", "8192", "16384"]
        assert "udp dport 9 drop" in b.run("nft", "list", "ruleset")
        assert not a.run("nft", "list", "ruleset")
        assert [interfaces(net, node)[-1].mtu_bytes for node in "ab"] == [1500, 1400]
        available = a.run("sysctl", "-n", network_settings.AVAILABLE).split()
    for name in {"bbr", "dctcp"} - {*available}:  # the kernel would load a module
        own = {"type": "sysctl", "at": "a", "name": network_settings.CONGESTION_CONTROL, "value": name}
        described["parts"] = [*WAN[:3], own]
        with (
            pytest.raises(Unsupported, match=f"has not loaded {name}"),
            live.build(msgspec.convert(described, Network)),
        ):
            pass


def test_network_from_a_file(tmp_path: Path, need: Need) -> None:
    need("macvlan")
    described = msgspec.to_builtins(example_networks.routed({"kind": "vxlan", "id": 30}))
    with sandbox(tmp_path) as machine:
        twice = described | {"parts": [*described["parts"], {**described["parts"][-1], "name": "tun_b"}]}
        for name, text in (("good", described), ("bad", described | {"mtu_bytes": 1400}), ("twice", twice)):
            (tmp_path / "here" / f"{name}.yaml").write_text(json.dumps(text))  # JSON is YAML
        lab_file = ROOT / "tests/samples/every-link.clab.yml"
        says = {
            "bad.yaml": "the MTU 1450 of eth0 (c1) does not fit through tun (n1) on the same link:"
            " 1400 (up) - 20 (IPv4) - 8 (UDP) - 8 (VXLAN) - 14 (Ethernet) = 1350",
            "twice.yaml": "create vxlan tun_b in n2: File exists (A VXLAN device with the specified VNI already"
            " exists): leave it out, or change its name, number or metric",
            "good.yaml pairs=2": "the network routed has its own values of all parameters but where: leave out pairs",
            "none.yaml": "there is no file none.yaml",
        }
        drawn = machine.commands("draw good.yaml", f"draw {lab_file}", *(f"draw {words}" for words in says))
    good, lab = drawn["draw good.yaml"], drawn[f"draw {lab_file}"]
    assert good.stdout.startswith("routed, 1 pair, Linux ")
    assert "vxlan 30  MTU 1450" in good.stdout
    assert lab.stderr.startswith(
        "labkit: every-link is a file of containerlab, of which labkit reads nodes and"
    )
    assert all(name in lab.stdout for name in ("srl", "br-clab", "mgmt-net", "vxlan 100", "macvlan bridge"))
    assert {words: one_sentence(drawn[f"draw {words}"]) for words in says} == says


@pytest.mark.long
def test_own_network_is_measured(tmp_path: Path) -> None:
    """It is measured as baseline with its control, beside a built-in topology, with a change of its own nodes, and
    resumed."""
    described = msgspec.to_builtins(example_networks.routed({"kind": "vxlan", "id": 30}))
    with sandbox(tmp_path) as machine:
        path = tmp_path / "here" / "my.yaml"
        path.write_text(json.dumps(described))
        words = ["topology=my.yaml,veth", "slices=2", "whole_runs=0", "observe=counters", "profile_rounds=1"]
        words += ["duration_s=1", "omit_s=0", "change=wide: mtu 1600 at r:to_n1", "--folder", "run"]
        rows = machine.rows(*words)
        measured = [row for row in rows if row["status"] == "ok" and row["method"] == "slice"]
        assert {row["arm"]: row["role"] for row in measured} == {
            "routed": "baseline", "routed (again)": "control", "routed+wide": "variant", "veth": "variant",
        }  # fmt: skip
        assert any(row["received_bytes"] for row in measured if row["topology"] == "routed")
        assert {(row["topology"], row["network"], row["mtu_bytes"]) for row in measured} == {
            ("routed", example_networks.routed({"kind": "vxlan", "id": 30}).digest, 1450),
            ("veth", None, 1450),
        }
        assert {row["arm"] for row in rows if row["method"] == "profile" and row["status"] == "ok"} >= {
            "routed"
        }
        page = machine.labkit("why", "run:routed", "veth", code=0)
        assert "routed" in page.stdout
        assert "routed" in (tmp_path / "here/run/why.html").read_text()
        path.write_text(json.dumps(described | {"mtu_bytes": 1600}))
        other = one_sentence(machine.labkit("run", "datapaths", *words))
        assert other.endswith("holds a run with other parameters: name another folder")


@pytest.mark.long
@pytest.mark.needs("root", "runc")
def test_containers_at_the_ends_of_an_own_network(tmp_path: Path) -> None:
    described = msgspec.to_builtins(example_networks.routed({"kind": "vxlan", "id": 30}))
    with sandbox(tmp_path, user=False) as machine:
        (tmp_path / "here" / "my.yaml").write_text(json.dumps(described))
        [row] = machine.rows("topology=my.yaml", "endpoint=container", "protocol=ping", "duration_s=1")
    assert (row["status"], row["topology"], row["endpoint"]) == ("ok", "routed", "container"), row["reason"]
    assert row["container_runtime"].startswith(("runc ", "crun "))
    assert row["received_count"] > 0


@pytest.mark.long
def test_interrupted_capture_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a capture runs, its file exists only in the topology's own mount namespace, so nobody has to remove it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    memory = Path("/dev/shm")
    before = set(memory.iterdir())
    with live.build("veth") as net:
        with net.capture("client0:eth0") as seen:
            net.client0.run("ping", "-n", "-c1", "-w15", net.server0.address)
            assert "labkit-" in net.client0.run("ls", str(memory))
            assert [path.name for path in tmp_path.iterdir() if path.name.startswith("labkit-")] == []
            assert not {path for path in set(memory.iterdir()) - before if path.name.startswith("labkit-")}
            for read in (lambda: seen.packets, lambda: seen.save(tmp_path / "early.pcapng")):
                with pytest.raises(
                    Failed, match=r"^the capture goes on, or it failed: read and save its packets"
                ):
                    read()
        assert len(seen.packets) >= 2
        with pytest.raises(Failed), net.capture("client0:eth0") as broken:
            net.client0.run("sh", "-c", f"ping -n -c1 -w15 {net.server0.address}; exit 1")
    broken.save(tmp_path / "broken.pcapng")
    saved = pcapng.read((tmp_path / "broken.pcapng").read_bytes()).frames
    assert len(saved) == len(broken.packets) >= 2
