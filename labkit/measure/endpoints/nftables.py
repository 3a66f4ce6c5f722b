"""Rules of nftables that a topology or a measurement itself needs. Those of a user are a change (`change_kinds`)."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.common.errors import Unsupported
from labkit.measure.endpoints.namespace import Namespace
from labkit.system import machine, process


def run_nft(space: Namespace, commands: Sequence[str], purpose: str, options: str) -> None:
    """Run commands of nft(8) in a namespace, all of them or none.

    purpose: what they are for, as a verb and its object. options: the options of the kernel that they need. Raises
    Unsupported without nft(8), or if the kernel refuses.
    """
    machine.require_program("nft")
    ended = process.run([*space.prefix, "nft", " ; ".join(commands)])
    if ended.returncode != 0:
        raise Unsupported(f"this kernel cannot {purpose} ({options}): {ended.message()}")
