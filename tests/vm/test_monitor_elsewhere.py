"""A monitor in a lab VM: packets are captured and selected there, and only counts and samples come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import SharedVm
from monitored_tunnels import inner_addresses_select

from labkit import live

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


@pytest.mark.parametrize(("kind", "family"), [("gre", 4), ("geneve", 4), ("geneve", 6)])
def test_inner_addresses(kind: str, family: int, shared_vm: SharedVm) -> None:
    """Many kernels have no GRE and no Geneve, and this one does."""
    inner_addresses_select(kind, shared_vm.where, family)
