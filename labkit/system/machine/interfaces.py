"""Read an interface's offloads and queueing discipline with ethtool and ip, behind an endpoint's command `prefix`."""

import json
import os
import re
from collections.abc import Sequence

from labkit.common import errors
from labkit.system import process
from labkit.system.machine.programs import program

_FEATURE = re.compile(r"^\s*([\w-]+): (on|off)\b", re.MULTILINE)


QUEUE_S = 0.05  # of a rate-limited link, like an ordinary switch


def token_bucket(
    rate_bps: float, mtu_bytes: int, queue_s: float = QUEUE_S, burst_bytes: int | None = None
) -> list[str]:
    """Return tc's words for a rate in bit/s. Burst: 2 packets of `mtu_bytes`, and 1 ms for late timers (tc-tbf(8))."""
    burst = burst_bytes or max(2 * (mtu_bytes + 100), int(rate_bps / 8 / 1000))
    return ["tbf", "rate", f"{int(rate_bps)}bit", "burst", str(burst), "latency", f"{round(queue_s * 1e6)}us"]


def offloads(prefix: Sequence[str], interface: str) -> dict[str, bool]:
    """Return features by name (ethtool -k); {} if ethtool is not installed. Raises Failed without the interface."""
    ethtool = program("ethtool")
    return features(process.output([*prefix, ethtool, "-k", interface])) if os.path.isabs(ethtool) else {}


def features(text: str) -> dict[str, bool]:
    """Parse the output of `ethtool -k`: feature name to on or off."""
    return {name: state == "on" for name, state in _FEATURE.findall(text)}


def qdisc(prefix: Sequence[str], interface: str) -> str:
    """Return the root qdisc: "noqueue", "mq" …, "noop" while down, "unknown" without ip. Raises Failed as ip says."""
    ip = program("ip")
    if not os.path.isabs(ip):
        return "unknown"
    return qdisc_in(process.output([*prefix, ip, "-j", "link", "show", "dev", interface]))


@errors.reading("the output of ip link")
def qdisc_in(text: str) -> str:
    """Parse the queueing discipline from the output of `ip -j link show dev …`."""
    return str(json.loads(text)[0].get("qdisc", "unknown"))
