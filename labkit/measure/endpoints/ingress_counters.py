"""Counters of nftables where an interface receives: behind the packet sockets of readers, before the network stack."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.measure.endpoints.namespace import Namespace
from labkit.measure.endpoints.nftables import run_nft

CHAIN = "load"


def count_at_ingress(
    space: Namespace, interface: str, table: str, counters: Iterable[str], rule: str, priority: int = 0
) -> None:
    """Add a table of family netdev with these counters, and one rule that every received frame passes.

    rule: as nft(8) writes it; it names the counters, and may drop. priority: of several tables the one with the lowest
    number is first. Raises Unsupported without nft(8), or on a kernel without such a hook.
    """
    hook = f"type filter hook ingress device {interface} priority {priority}"
    rules = (
        f"add table netdev {table}",
        f"add chain netdev {table} {CHAIN} {{ {hook} ; }}",
        *(f"add counter netdev {table} {counter}" for counter in counters),
        f"add rule netdev {table} {CHAIN} {rule}",
    )
    run_nft(space, rules, "count frames at ingress", "CONFIG_NETFILTER_INGRESS, nf_tables")
