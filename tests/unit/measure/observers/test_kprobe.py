"""The output of perf-tools' kprobe is counted, and kprobe only ever gets function names."""

from __future__ import annotations

import pytest

from labkit.common.errors import Failed
from labkit.measure.observers.ftrace import perf_tools

HEADER = """\
Tracing kprobe labkit_probe for 100000 seconds (buffered)...
# tracer: nop
#
# entries-in-buffer/entries-written: 4/1900   #P:2
#
#                                _-----=> irqs-off/BH-disabled
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
"""
CALLS = """\
          iperf3-412     [001] ..s1.    77.123456: labkit_probe: (ip_rcv+0x0/0xa0)
 kworker/u4:2-h-71       [000] ..s1.    77.123457: labkit_probe: (ip_rcv+0x0/0xa0)
          iperf3-412     [001] ..s1.    77.123458: labkit_probe: (ip_rcv+0x0/0xa0)
          <idle>-0       [001] ..s1.    77.123459: labkit_probe: (ip_rcv+0x0/0xa0)

Ending tracing...
"""
RETURNS = """\
          iperf3-412     [001] .....    77.1: labkit_probe: (inet_sendmsg+0x64/0x80 <- udp_sendmsg) value=512
          iperf3-412     [001] .....    77.2: labkit_probe: (inet_sendmsg+0x64/0x80 <- udp_sendmsg) value=512
          iperf3-412     [001] .....    77.3: labkit_probe: (inet_sendmsg+0x64/0x80 <- udp_sendmsg) value=4294967285
"""


def test_calls_by_process() -> None:
    observed = perf_tools.observation(HEADER + CALLS, "ip_rcv").observed
    assert (observed["calls_count"], observed["kept_count"]) == (1900, 4)
    assert observed["processes"] == {"iperf3": 2, "kworker/u4:2-h": 1, "<idle>": 1}
    assert observed["values"] == {}


def test_returned_values() -> None:
    observed = perf_tools.observation(HEADER + RETURNS, "udp_sendmsg:return").observed
    assert observed["values"] == {"512": 2, "-11": 1}


def test_no_calls_is_a_doubt() -> None:
    report = perf_tools.observation("# entries-in-buffer/entries-written: 0/0   #P:2\n", "ip6_rcv")
    assert report.doubts == ["ip6_rcv was not called while kprobe recorded"]


def test_output_without_header_is_refused() -> None:
    with pytest.raises(Failed, match="the output of kprobe"):
        perf_tools.observation("ERROR: func ip_rcv not in available_filter_functions\n", "ip_rcv")
