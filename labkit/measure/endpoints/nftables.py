"""Rules of nftables that a topology or a measurement needs, and those of a user as text.

Counters where an interface receives are behind the packet sockets of readers, before the network stack.
"""

import re
from collections.abc import Iterable, Sequence

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.endpoints.namespace import Namespace
from labkit.system import machine, process

CHAIN = "load"
LOADING_S = 60.0  # tens of thousands of rules, on an emulated CPU
UDP_GRO = ("rx-gro-list", "rx-udp-gro-forwarding")  # offloads by which GRO joins datagrams


def run_nft(space: Namespace, commands: Sequence[str], purpose: str, options: str) -> None:
    """Run commands of nft(8) in a namespace, all of them or none.

    purpose: what they are for, as a verb and its object. options: the options of the kernel that they need. Raises
    Unsupported without nft(8), or if the kernel refuses.
    """
    try:
        load_text(space, "\n".join(commands))
    except Failed as error:
        raise Unsupported(f"this kernel cannot {purpose} ({options}): {error}") from None


def load_text(space: Namespace, text: str) -> None:
    """Load rules into a namespace, all of them or none. Raises Failed with nft's reason, Unsupported without nft(8)."""
    argv = [*space.prefix, machine.require_program("nft"), "-f", "-"]
    ended = process.run(argv, LOADING_S, text.encode())
    if ended.returncode != 0:
        raise Failed(ended.message())


def check_text(text: str, what: str) -> None:
    """Raise BadInput for rules that name other files: nft would read any that the user can read, and quote it in its
    messages."""
    if re.search(r"\binclude\b", text):
        raise BadInput(
            f"{what}: include is not allowed, not even in a comment: write all rules into one text"
        )


def check_no_udp_gro(space: Namespace, interface: str) -> None:
    """Raise Unsupported if this interface joins UDP datagrams: a counter takes a batch of them for one frame."""
    on = {name for name, is_on in space.offloads(interface).items() if is_on}
    if (merging := sorted(on.intersection(UDP_GRO))) and "generic-receive-offload" in on:
        what = f"{' and '.join(merging)} at {interface} of {space.name}"
        raise Unsupported(f"with {what}, nftables counts a batch of datagrams as one frame: turn it off")


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
