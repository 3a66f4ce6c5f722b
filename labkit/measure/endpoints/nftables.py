"""Rules of nftables that a topology or a measurement itself needs. Those of a user are a change (`change_kinds`).

Counters where an interface receives are behind the packet sockets of readers, before the network stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labkit.common.errors import Unsupported
from labkit.measure.endpoints.namespace import Namespace
from labkit.system import machine, process

CHAIN = "load"


def run_nft(space: Namespace, commands: Sequence[str], purpose: str, options: str) -> None:
    """Run commands of nft(8) in a namespace, all of them or none.

    purpose: what they are for, as a verb and its object. options: the options of the kernel that they need. Raises
    Unsupported without nft(8), or if the kernel refuses.
    """
    machine.require_program("nft")
    ended = process.run([*space.prefix, "nft", " ; ".join(commands)])
    if ended.returncode != 0:
        raise Unsupported(f"this kernel cannot {purpose} ({options}): {ended.message()}")


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
