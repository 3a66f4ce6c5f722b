"""Settings of a network's nodes: offloads, ports of bridges, sysctls and rules of nftables.

A description may come from a stranger. So no value is a command or a path, sysctls are those of a closed list, which
the kernel keeps for each network namespace, and everything is applied in the namespaces of the network itself.
"""

import re
from collections.abc import Mapping

from labkit.common.errors import BadInput, LabkitError, Unsupported, choose
from labkit.common.limits import Limit, OneOf, Within
from labkit.measure.endpoints import Namespace, nftables
from labkit.measure.topologies.network.model import NetworkIndex, check_unique
from labkit.measure.topologies.network.parts import LINK_LIMITS, BridgePort, Offloads, Rules, Sysctl

_SWITCH, _UP_TO_2, _BYTES = Within(0, 1), Within(0, 2), Within(1, 1 << 30)
_FRAGMENTS, _SECONDS = Within(0, 1 << 28), Within(0, 3600)  # bytes of fragments, and how long they wait
_OF_INTERFACES: dict[str, dict[str, Limit]] = {
    "net.ipv4.conf": {
        "accept_local": _SWITCH, "accept_redirects": _SWITCH, "arp_announce": _UP_TO_2, "arp_filter": _SWITCH,
        "arp_ignore": Within(0, 8), "disable_policy": _SWITCH, "disable_xfrm": _SWITCH, "forwarding": _SWITCH,
        "ignore_routes_with_linkdown": _SWITCH, "proxy_arp": _SWITCH, "route_localnet": _SWITCH, "rp_filter": _UP_TO_2,
        "secure_redirects": _SWITCH, "send_redirects": _SWITCH, "src_valid_mark": _SWITCH,
    },
    "net.ipv6.conf": {
        "accept_redirects": _SWITCH, "forwarding": _SWITCH, "hop_limit": Within(0, 255), "proxy_ndp": _SWITCH,
    },
}  # fmt: skip
_OF_NODES: dict[str, dict[str, Limit]] = {
    "net.ipv4": {
        "fib_multipath_hash_policy": Within(0, 3), "icmp_echo_ignore_all": _SWITCH, "ip_default_ttl": Within(1, 255),
        "ip_forward_use_pmtu": _SWITCH, "ip_no_pmtu_disc": Within(0, 3), "ip_nonlocal_bind": _SWITCH,
        "ipfrag_high_thresh": _FRAGMENTS, "ipfrag_low_thresh": _FRAGMENTS, "ipfrag_time": _SECONDS,
        "tcp_autocorking": _SWITCH, "tcp_base_mss": Within(48, 65535),
        "tcp_congestion_control": OneOf(("reno", "cubic", "bbr", "dctcp")), "tcp_ecn": _UP_TO_2,
        "tcp_limit_output_bytes": _BYTES, "tcp_min_snd_mss": Within(48, 65535), "tcp_moderate_rcvbuf": _SWITCH,
        "tcp_mtu_probing": _UP_TO_2, "tcp_no_metrics_save": _SWITCH, "tcp_notsent_lowat": Within(0, (1 << 32) - 1),
        "tcp_rmem": _BYTES, "tcp_sack": _SWITCH, "tcp_slow_start_after_idle": _SWITCH, "tcp_timestamps": _UP_TO_2,
        "tcp_window_scaling": _SWITCH, "tcp_wmem": _BYTES, "udp_rmem_min": _BYTES, "udp_wmem_min": _BYTES,
    },
    "net.ipv6": {"ip6frag_high_thresh": _FRAGMENTS, "ip6frag_low_thresh": _FRAGMENTS, "ip6frag_time": _SECONDS},
    "net.core": {"somaxconn": Within(0, 1 << 20)},
    "net.bridge": {
        "bridge-nf-call-arptables": _SWITCH, "bridge-nf-call-ip6tables": _SWITCH, "bridge-nf-call-iptables": _SWITCH,
        "bridge-nf-filter-vlan-tagged": _SWITCH,
    },
    "net.netfilter": {
        "nf_conntrack_checksum": _SWITCH, "nf_conntrack_tcp_be_liberal": _SWITCH, "nf_conntrack_tcp_loose": _SWITCH,
    },
}  # fmt: skip
# The sysctls that a network may set, with their limits; `*` is `all`, or an interface of the node.
SYSCTLS: Mapping[str, Limit] = {
    **{f"{group}.*.{name}": limit for group, of in _OF_INTERFACES.items() for name, limit in of.items()},
    **{f"{group}.{name}": limit for group, of in _OF_NODES.items() for name, limit in of.items()},
}
CONGESTION_CONTROL, AVAILABLE = "net.ipv4.tcp_congestion_control", "net/ipv4/tcp_available_congestion_control"
THREE = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")  # the least, the first and the largest size of a buffer


def parsed(name: str) -> tuple[str, str | None]:
    """Return the name of a sysctl as SYSCTLS has it, and the interface whose sysctl it is (which may have dots)."""
    found = re.fullmatch(r"(net\.ipv[46]\.conf)\.(.+)\.(\w+)", name)
    return (f"{found[1]}.*.{found[3]}", found[2]) if found else (name, None)


def is_allowed(one: Sysctl) -> bool:
    """Return whether a network may have a sysctl with this value."""
    try:
        _value(one)
    except BadInput:
        return False
    return True


def check(described: NetworkIndex) -> None:
    """Raise BadInput for an offload, a sysctl or rules that a network cannot have."""
    of_interfaces: list[Offloads | BridgePort] = [*described.offloads, *described.ports]
    nodes = [own.at for own in of_interfaces] + [one.at for one in described.sysctls]
    for node in nodes + [rules.at for rules in described.rules]:
        if node not in described.nodes:
            raise BadInput(
                f"settings are of {node}, which is not a node; there are {', '.join(described.nodes)}"
            )
    check_unique(
        [(one.at, one.interface, str(one.__struct_config__.tag)) for one in of_interfaces],
        lambda key: f"{key[1]} ({key[0]}) has {key[2]} twice: write all of them into one part",
    )
    for own in of_interfaces:
        if (own.at, own.interface) not in described.interfaces:
            raise BadInput(f"{own.at} has no interface {own.interface}: it has {described.names(own.at)}")
        if both := set(own.disable) & set(own.enable):
            raise BadInput(
                f"{min(both)} of {own.interface} ({own.at}) is both enabled and disabled: keep one of them"
            )
    check_unique(
        [(one.at, one.name) for one in described.sysctls],
        lambda key: f"{key[1]} of {key[0]} is set twice: write one of them",
    )
    for one in described.sysctls:
        _sysctl(described, one)
    for rules in described.rules:
        nftables.check_text(rules.text, f"the rules of {rules.at}")


def _sysctl(described: NetworkIndex, one: Sysctl) -> None:
    _value(one)
    _name, interface = parsed(one.name)
    if interface not in (None, "all") and (one.at, interface) not in described.interfaces:
        raise BadInput(
            f"the sysctl {one.name} is of the interface {interface}, but {one.at} has {described.names(one.at)}"
        )


def _value(one: Sysctl) -> None:
    """Raise BadInput for a sysctl that is not in SYSCTLS, or a value outside its limits."""
    name, _interface = parsed(one.name)
    if name not in SYSCTLS:
        raise BadInput(
            f"the sysctl {one.name} of {one.at} is none that a network may set: {choose(name, list(SYSCTLS))}"
        )
    words = str(one.value).split()
    if len(words) != (3 if name in THREE else 1):
        raise BadInput(
            f"{one.name}={one.value!r} of {one.at}: write {'three numbers' if name in THREE else 'one value'}"
        )
    for word in words:
        SYSCTLS[name].parse(f"{one.name} of {one.at}", word)


def apply(described: NetworkIndex, spaces: Mapping[str, Namespace]) -> None:
    """Apply all settings. Raises Unsupported for what this kernel lacks or refuses."""
    for own in described.offloads:
        set_offloads(own, spaces[own.at])
    for port in described.ports:
        set_port(port, spaces[port.at])
    for one in described.sysctls:
        set_sysctl(one, spaces[one.at])
    for rules in described.rules:
        load_rules(rules, spaces[rules.at])


def _switched(own: Offloads | BridgePort) -> list[str]:
    """Return each option with `on` or `off`, as ethtool(8) and bridge(8) take them."""
    words = [word for name in own.disable for word in (name, "off")]
    return words + [word for name in own.enable for word in (name, "on")]


def set_offloads(own: Offloads, space: Namespace) -> None:
    """Switch and limit offloads of an interface. Raises Unsupported with the reason of ethtool or ip if it refuses."""
    commands = [["ethtool", "-K", own.interface, *words]] if (words := _switched(own)) else []
    given = ((name, getattr(own, name)) for name in LINK_LIMITS)
    limits = [word for name, value in given if value is not None for word in (name, str(value))]
    commands += [["ip", "link", "set", "dev", own.interface, *limits]] if limits else []
    _carry_out(commands, own, "offloads", space)


def set_port(own: BridgePort, space: Namespace) -> None:
    """Set a bridge's port, or a bridge. Raises Unsupported with bridge(8)'s reason if it refuses."""
    dev, by, words = ["dev", own.interface], ["self"] if own.filters_vlans else [], _switched(own)
    commands = [["ip", "link", "set", *dev, "type", "bridge", "vlan_filtering", "1"]] if by else []
    commands += [["bridge", "link", "set", *dev, *words]] if words else []
    if own.vlans is not None:
        commands.append(["bridge", "vlan", "del", *dev, "vid", "1-4094", *by])
    for vlan in own.vlans or ():
        flags = [word for word, is_set in (("pvid", vlan.pvid), ("untagged", vlan.untagged)) if is_set]
        commands.append(["bridge", "vlan", "add", *dev, "vid", str(vlan.id), *flags, *by])
    _carry_out(commands, own, "settings of a port", space)


def _carry_out(commands: list[list[str]], own: Offloads | BridgePort, what: str, space: Namespace) -> None:
    for command in commands:
        if (ended := space.run(*command)).returncode:
            raise Unsupported(f"{own.interface} ({own.at}) does not take its {what}: {ended.message()}")


def set_sysctl(one: Sysctl, space: Namespace) -> None:
    """Set a sysctl. Raises Unsupported if this kernel has none of this name in a namespace, or refuses the value, or
    would load a module for it."""
    if one.name == CONGESTION_CONTROL and one.value not in space.read(f"/proc/sys/{AVAILABLE}").split():
        raise Unsupported(
            f"this kernel has not loaded {one.value}, the {one.name} of {one.at}, and no network loads modules into it:"
            f" modprobe tcp_{one.value}, or leave it out"
        )
    name, interface = parsed(one.name)
    words = [interface if word == "*" else word for word in name.split(".")]
    try:
        space.sysctl("/".join(map(str, words[1:])), one.value)
    except OSError as error:
        raise Unsupported(
            f"this kernel does not set the sysctl {one.name} of {one.at} to {one.value} ({error.strerror}):"
            " leave it out, or choose another kernel with where"
        ) from None


def load_rules(rules: Rules, space: Namespace) -> None:
    """Load rules of nftables. Raises BadInput for an `include`, Unsupported with nft's reason if it refuses."""
    nftables.check_text(rules.text, f"the rules of {rules.at}")
    try:
        nftables.load_text(space, rules.text)
    except LabkitError as error:
        raise Unsupported(f"the rules of {rules.at} cannot be loaded: {error}") from None
