"""An endpoint of a live topology rejects invalid requests before it sends them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from labkit import live
from labkit.common.errors import BadInput


class Recorder:
    """A fake topology that records its requests."""

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
