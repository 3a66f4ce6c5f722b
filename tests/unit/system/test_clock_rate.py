"""The rate of the time stamp counter, which a lab VM's kernel gets as a parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.system.qemu import command


def test_clock_rate_is_stable_and_plausible() -> None:
    text = Path("/proc/cpuinfo").read_text()
    rates = [command.tsc_khz(), command.tsc_khz()]
    if "constant_tsc" not in text:
        assert rates == [None, None]
        return
    one, other = (rate for rate in rates if rate is not None)
    assert one == pytest.approx(other, rel=1e-3)
    assert 5e5 < one < 1e7  # 0.5 to 10 GHz
