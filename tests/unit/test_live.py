"""An endpoint of a live topology rejects invalid requests before it sends them."""

from typing import Any, cast

import example_states
import pytest

from labkit import live
from labkit.analysis import drawing
from labkit.common.errors import BadInput
from labkit.common.topology_state import State


class Recorder:
    def __init__(self) -> None:
        self.requests: list[list[str]] = []

    def _ask(self, do: str, *, argv: list[str], **_: Any) -> dict[str, Any]:
        self.requests.append(argv)
        return {"returncode": 0, "stdout": "", "number": 1}


@pytest.mark.parametrize("words", [(), (["ip", "addr"],), (5,), ("sh", "-c", "\udcff"), ("sh", "a\0b")])
def test_commands_that_no_program_can_have(words: tuple[Any, ...]) -> None:
    topology = Recorder()
    end = live.Endpoint(cast(Any, topology), "client0", None)
    for method in (end.run, end.start):
        with pytest.raises(BadInput, match=r"run\('ip', 'addr'\)|leave it out"):
            method(*words)
    assert topology.requests == []
    end.run("ip", "addr")
    assert topology.requests == [["ip", "addr"]]


class Drawn(live.LiveTopology):
    def __init__(self) -> None:
        self._open = True

    @property
    def state(self) -> State:
        return example_states.bridged(1)


def test_display_has_the_drawing_for_mermaid() -> None:
    bundle = Drawn()._repr_mimebundle_()
    assert bundle["text/vnd.mermaid"] == drawing.mermaid(example_states.bridged(1))
    assert "flowchart LR" in bundle["text/vnd.mermaid"]
    assert bundle["text/plain"] == drawing.tree(example_states.bridged(1)).rstrip()
