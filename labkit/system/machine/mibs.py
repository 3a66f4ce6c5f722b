"""Read the kernel's MIBs: /proc/net/snmp, netstat and snmp6 (RFC 4293, 4113, 4022 and Linux's own)."""

from __future__ import annotations

from labkit.common import errors

# Limits and states, not counts.
STATES = {"Forwarding", "DefaultTTL", "RtoAlgorithm", "RtoMin", "RtoMax", "MaxConn", "CurrEstab"}


@errors.reading("/proc/net/snmp or netstat")
def mibs(text: str, *only: str) -> dict[str, dict[str, int]]:
    """Parse /proc/net/snmp or netstat: group (Ip, Udp, TcpExt …) to counters, without states.

    only: the groups to parse; without them all.
    """
    lines = [line for line in text.splitlines() if line]
    result = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        group = names.partition(":")[0]
        if only and group not in only:
            continue
        both = zip(names.split()[1:], map(int, values.split()[1:]), strict=True)
        result[group] = {name: value for name, value in both if name not in STATES}
    return result


def mibs6(text: str, *only: str) -> dict[str, dict[str, int]]:
    """Parse /proc/net/snmp6 into the groups Ip6, Icmp6, Udp6, UdpLite6, or only into these."""
    result: dict[str, dict[str, int]] = {}
    with errors.reading("/proc/net/snmp6") as at:
        for at.line, line in enumerate(text.splitlines(), 1):
            if only and not line.startswith(only):
                continue
            name, value = line.split()
            group, _, rest = name.partition("6")
            result.setdefault(f"{group}6", {})[rest] = int(value)
    return result
