"""What `labkit why` knows about switches by their names fits the names that exist."""

from __future__ import annotations

from labkit.analysis.why import switch_work
from labkit.common.switch_options import NAMES, Datapath


def test_every_switch_has_its_work_explained() -> None:
    for name, datapath in NAMES.items():
        for topology in (name, f"{name}+mirrors=2"):
            assert switch_work.SWITCHES.fullmatch(topology), topology
            assert bool(switch_work.POLLING.fullmatch(topology)) == (datapath is Datapath.DPDK), topology
    assert not switch_work.SWITCHES.fullmatch("veth_bridge")
