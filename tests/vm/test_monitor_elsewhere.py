"""A monitor in a lab VM: packets are captured and selected there, and only counts and samples come back."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import SharedVm
from monitored_tunnels import inner_addresses_select
from sandbox import also

from labkit import live
from labkit.commands import monitor as command
from labkit.common.errors import BadInput
from labkit.common.packets import pcapng
from labkit.jupyter import monitor_page
from labkit.jupyter.monitor_hub import HubClient
from labkit.measure.observers.monitor.live_monitor import MonitorReport

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "qemu", "full kernel")
PINGS, PAYLOAD_BYTES = 300, 1400


def counting(net: live.LiveTopology, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the bytes of each answer from the other kernel, without its base64."""
    sizes: list[int] = []
    ask = net._ask

    def counted(do: str, **more: Any) -> dict[str, Any]:
        answer = ask(do, **more)
        if do.startswith("monitor"):
            sizes.append(len(json.dumps(answer, default=str)))
        return answer

    monkeypatch.setattr(net, "_ask", counted)
    return sizes


def test_only_samples_and_counts_travel(shared_vm: SharedVm, monkeypatch: pytest.MonkeyPatch) -> None:
    with live.build("veth", where=shared_vm.where) as net:
        sizes = counting(net, monkeypatch)
        with (
            net.monitor(
                "server0:eth0", protocol="icmp", source=net.client0.address, sample="one_in:100"
            ) as one,
            net.monitor("server0:eth0", source="10.99.0.1") as nothing,
        ):
            words = ["-q", "-c", str(PINGS), "-i", "0.002", "-s", str(PAYLOAD_BYTES)]
            net.client0.run("ping", *words, net.server0.address)
            report, none = one.stop(), nothing.stop()
            assert [packet.length_bytes for packet in one.packets] == [14 + 28 + PAYLOAD_BYTES] * (
                PINGS // 100
            )
    assert (report.counts.selected_count, report.counts.sampled_count) == (PINGS, PINGS // 100)
    assert none.counts.selected_count == 0
    assert none.counts.seen_count >= 2 * PINGS
    assert 0 < sum(sizes) < 0.05 * PINGS * PAYLOAD_BYTES


def test_command_with_where(shared_vm: SharedVm, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`labkit monitor veth where=…`: the packets of a topology there are in the counts and in the file here."""
    file = tmp_path / "seen.pcapng"
    given = {"interface": "server0:eth0", "where": shared_vm.where, "protocol": "icmp"}
    command.watch("veth", given, 1.0, file, pings=True, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["hop"] == "server0:eth0"
    assert 0 < shown["selected_count"] <= shown["seen_count"]
    assert shown["dropped_count"] == 0
    assert "ICMP echo" in shown["packets"][0]
    assert len(pcapng.read(file.read_bytes()).frames) == shown["selected_count"]


def test_command_on_an_interface_of_another_machine(shared_vm: SharedVm) -> None:
    """`labkit monitor lo where=…` opens the loopback interface of that machine, not the one of this one."""
    with command.open_monitor("lo", {"where": shared_vm.where, "protocol": "icmp"}) as (there, one):
        assert one.hop == "machine:lo"
        there.machine.run("ping", "-q", "-c", "2", "-i", "0.01", "127.0.0.1")
        assert one.stop().counts.selected_count == 8  # requests and replies, each outgoing and incoming
        with pytest.raises(BadInput, match="has no interface"):
            there.monitor("machine:nowhere0")


@pytest.mark.exhaustive  # the command watches there above, and test_monitor_page.py has pages
def test_page_with_where(
    shared_vm: SharedVm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`labkit monitor veth --serve where=…`: the page's kernel reaches the monitor there over the hub here."""
    seen: list[MonitorReport] = []

    def page(_argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Do what the kernel of a page does, instead of Voilà."""
        given = json.loads(environment[monitor_page.VARIABLE])
        # A kernel with GRE also has gre0 and its like in every namespace.
        assert {"client0:eth0", "server0:eth0"} <= {*given["interfaces"]}
        one = HubClient(given["socket"]).monitor(**given["choice"])
        deadline = time.monotonic() + 60
        while not seen or not seen[-1].packets:
            assert time.monotonic() < deadline
            seen.append(one.read())
        one.close()
        return 0

    monkeypatch.setattr(command.process, "interactive", page)
    given = {"where": shared_vm.where, "protocol": "icmp"}
    assert command.serve("veth", given, None, pings=True) == 0
    assert capsys.readouterr().out == ""  # no server listens there, so no address is printed
    assert "ICMP echo" in seen[-1].packets[0].stack


@pytest.mark.parametrize(("kind", "family"), [("geneve", 6), *also("exhaustive", ("gre", 4), ("geneve", 4))])
def test_inner_addresses(kind: str, family: int, shared_vm: SharedVm) -> None:
    """Many kernels have no GRE and no Geneve, and this one does."""
    inner_addresses_select(kind, shared_vm.where, family)
