"""Parse the kernel's network counters in /proc/net.

MIBs (snmp, netstat, snmp6: RFC 4293, 4113, 4022 and Linux's own), interfaces (dev), and each CPU's backlog
(softnet_stat).
"""

from labkit.common import errors

# Limits and states, not counts.
STATES = {"Forwarding", "DefaultTTL", "RtoAlgorithm", "RtoMin", "RtoMax", "MaxConn", "CurrEstab"}
# The columns of /proc/net/dev: reception, then transmission (net/core/net-procfs.c).
INTERFACE = (
    "rx_bytes", "rx_packets", "rx_errors", "rx_dropped", "rx_fifo_errors", "rx_frame_errors", "rx_compressed",
    "multicast", "tx_bytes", "tx_packets", "tx_errors", "tx_dropped", "tx_fifo_errors", "collisions",
    "tx_carrier_errors", "tx_compressed",
)  # fmt: skip
# The columns of /proc/net/softnet_stat, whose numbers are hexadecimal
SOFTNET = {0: "processed", 1: "dropped", 2: "time_squeeze", 9: "received_rps", 10: "flow_limit"}
SOFTNET_CPU = 12  # the column with the CPU's number (Linux 5.10); earlier, lines are CPUs in order


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


def interfaces(text: str) -> dict[str, dict[str, int]]:
    """Parse /proc/net/dev: interface to counters by INTERFACE's names."""
    result = {}
    with errors.reading("/proc/net/dev") as at:
        for at.line, line in enumerate(text.splitlines()[2:], 3):
            name, _, numbers = line.rpartition(":")
            result[name.strip()] = dict(zip(INTERFACE, map(int, numbers.split()), strict=False))
    return result


@errors.reading("/proc/net/softnet_stat")
def softnet_counts(text: str) -> dict[str, dict[str, int]]:
    """Parse /proc/net/softnet_stat: number of the CPU to counters by SOFTNET's names."""
    result = {}
    for number, line in enumerate(text.splitlines()):
        fields = [int(word, 16) for word in line.split()]
        cpu = fields[SOFTNET_CPU] if len(fields) > SOFTNET_CPU else number
        result[str(cpu)] = {name: fields[at] for at, name in SOFTNET.items() if at < len(fields)}
    return result
