"""Display filters: a tshark that hangs, and tables of bounded size."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from labkit.common.errors import BadInput, Unsupported
from labkit.common.packets import ETHERNET
from labkit.measure.observers.monitor import display_filter
from labkit.measure.observers.monitor.display_filter import DisplayFilter
from labkit.system.machine import programs


def test_hanging_tshark_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tshark"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(display_filter, "SILENT_S", 0.2)
    one = DisplayFilter("ip", ETHERNET)
    one.add([(0, 0, "in", 60, bytes(60))])
    assert one.awaiting_count == 1
    deadline = time.monotonic() + 20
    while one.problem is None:
        assert list(one.judged()) == []
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "did not answer within 0.2 s" in one.problem
    one.add([(1, 0, "in", 60, bytes(60))])
    assert (one.awaiting_count, one.unexamined_count, one.hidden_count) == (0, 2, 0)
    one.close()


def test_missing_tshark_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "_MORE_PATH", [])
    with pytest.raises(
        Unsupported, match=r"the program tshark is not installed .*: dnf install wireshark-cli"
    ):
        display_filter.check("ip")


@pytest.mark.needs("tshark")
def test_parentheses_within_quotes() -> None:
    """Only those outside of a string have to match, and only tshark knows which these are."""
    for text in ('frame contains "("', r'frame matches "\\)"', '(ip or frame contains ")")'):
        display_filter.check(text)
    for text in ("ip) or (ip", '(frame contains ")"', 'frame contains "'):
        with pytest.raises(BadInput, match="is not possible"):
            display_filter.check(text)
    with pytest.raises(BadInput, match="the display filter is empty"):
        display_filter.check(" ")


def test_packets_beyond_the_pipe_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tshark"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(display_filter, "MAX_PENDING_BYTES", 10_000)
    one = DisplayFilter("ip", ETHERNET)
    for number in range(100):
        one.add([(number, 0, "in", 1000, bytes(1000))])
    assert one.awaiting_count + one.unexamined_count == 100
    assert one.awaiting_count < 20
    one.close()
