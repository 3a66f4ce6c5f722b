"""Processes to count are given by a regular expression or by a name."""

from __future__ import annotations

import pytest

from labkit.analysis import flame
from labkit.common.errors import BadInput


def test_switch_is_the_threads_of_ovs_vswitchd() -> None:
    matches = flame.process_pattern("switch").fullmatch
    assert all(map(matches, ("ovs-vswitchd", "pmd-c01/id:8", "handler12", "revalidator3", "urcu4")))
    assert not any(map(matches, ("iperf3", "ovsdb-server", "switch", "swapper")))
    assert flame.process_pattern("iperf3").fullmatch("iperf3")
    with pytest.raises(BadInput, match="is not a valid regular expression"):
        flame.process_pattern("(")
