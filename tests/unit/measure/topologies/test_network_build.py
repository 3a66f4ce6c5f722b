"""Networks on a kernel that fails to build a part as requested."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import example_networks
import pytest

from labkit.common.errors import Failed
from labkit.measure.topologies.network import build as building
from labkit.measure.topologies.network import validate


def test_bridge_that_drops_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's report is made up, because a real bridge forwards between ports that are up."""
    described, result = validate.check(example_networks.routed({"kind": "vxlan", "id": 30}))
    spaces: Any = [SimpleNamespace(name=name, netlink=name) for name in described.nodes]
    built = building.BuiltNetwork(described, result, spaces)
    silent: set[Any] = {("n2", "up")}  # no bridge

    def links(at: Any) -> list[Any]:
        own = (key for key in built.index if key[0] == at)
        return [SimpleNamespace(index=built.index[key], carrier=key not in silent) for key in own]

    monkeypatch.setattr(building.netlink, "links", links)
    monkeypatch.setattr(building, "SETTLE_S", 0.0)
    built.settle()
    silent.add(("n2", "br"))
    with pytest.raises(
        Failed, match=r"^the bridge br \(n2\) does not forward after 0 s, although its port \w+ is up"
    ):
        built.settle()
