"""Read the offloads and the queueing discipline of an interface with ethtool and ip.

`prefix` is the command prefix that runs a program where the interface is (an endpoint's `prefix`).
"""

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
    """Return the words behind `tc qdisc add dev … root` that limit a rate in bit/s, for packets of up to `mtu_bytes`.

    Without a given burst, it holds two packets, and 1 ms of traffic because timers may be late (tc-tbf(8)). Larger
    packets are segmented.
    """
    burst = burst_bytes or max(2 * (mtu_bytes + 100), int(rate_bps / 8 / 1000))
    return ["tbf", "rate", f"{int(rate_bps)}bit", "burst", str(burst), "latency", f"{round(queue_s * 1e6)}us"]


def offloads(prefix: Sequence[str], interface: str) -> dict[str, bool]:
    """Return the features of an interface, name to on or off (ethtool -k); empty if ethtool is not installed.

    Raises Failed with ethtool's message if there is no such interface.
    """
    ethtool = program("ethtool")
    return features(process.output([*prefix, ethtool, "-k", interface])) if os.path.isabs(ethtool) else {}


def features(text: str) -> dict[str, bool]:
    """Parse the output of `ethtool -k`: feature name to on or off."""
    return {name: state == "on" for name, state in _FEATURE.findall(text)}


def qdisc(prefix: Sequence[str], interface: str) -> str:
    """Return the root queueing discipline: "noqueue", "fq_codel", "mq" …, "noop" while down, "unknown" without ip.

    Raises Failed with ip's message if there is no such interface.
    """
    ip = program("ip")
    if not os.path.isabs(ip):
        return "unknown"
    return qdisc_in(process.output([*prefix, ip, "-j", "link", "show", "dev", interface]))


@errors.reading("the output of ip link")
def qdisc_in(text: str) -> str:
    """Parse the queueing discipline from the output of `ip -j link show dev …`."""
    return str(json.loads(text)[0].get("qdisc", "unknown"))
