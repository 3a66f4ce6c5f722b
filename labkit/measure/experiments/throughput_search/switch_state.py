"""What an Open vSwitch counted during a trial: packets that its datapath did not know, its flows and their masks."""

from __future__ import annotations

from typing import Any

from labkit.measure.observers import switch as counters
from labkit.measure.topologies.open_vswitch.switch import Switch

MOST_FLOWS = 5000  # listing more flows takes seconds, during which the switch does little else


class SwitchState:
    """The counters of a switch; empty without a switch."""

    def __init__(self, switch: Switch | None) -> None:
        self._switch = switch
        self._missed_count = self._missed()

    def begin(self) -> None:
        """Start a trial."""
        self._missed_count = self._missed()

    def row(self) -> dict[str, Any]:
        """Return columns of a row: counts since the start, and the current state."""
        if self._switch is None:
            return {}
        _ports, own, state = counters.datapaths(self._switch.command("dpctl/show"))
        masks = state.get("masks")
        if masks is None and state["flows"] <= MOST_FLOWS:
            masks = len(counters.masks(self._switch.command("dpctl/dump-flows")))
        return {
            "upcalls_count": own["missed"] - self._missed_count,
            "megaflows_count": state["flows"],
            "masks_count": masks,
        }

    def _missed(self) -> int:
        if self._switch is None:
            return 0
        _ports, own, _state = counters.datapaths(self._switch.command("dpctl/show"))
        return own["missed"]
