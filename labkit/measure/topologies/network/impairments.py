"""What impairments do to packets: netem, tbf and pfifo at the way out of an interface."""

from collections.abc import Mapping

from labkit.common.errors import Failed, Unsupported
from labkit.measure.endpoints import Namespace
from labkit.measure.topologies.network.model import NetworkIndex
from labkit.measure.topologies.network.parts import Impairment
from labkit.measure.topologies.network.validate import Mtus
from labkit.system import machine, process

LIMIT = 1_000_000  # packets that netem may hold; its default of 1,000 would limit the rate


def apply(described: NetworkIndex, mtus: Mtus, spaces: Mapping[str, Namespace]) -> None:
    """Give each impaired interface its qdiscs. Raises Unsupported with tc's reason where this kernel lacks one."""
    wanted = (
        (one, place, words)
        for one in described.impairments
        for place, words in qdiscs(one, mtus.of(described.interfaces[one.at, one.interface]))
    )
    for one, place, words in wanted:
        tc = [*spaces[one.at].prefix, machine.require_program("tc"), "qdisc", "replace", "dev", one.interface]
        try:
            process.output([*tc, *place, *words])
        except Failed as error:
            raise Unsupported(
                f"the impairment of {one.interface} ({one.at}) needs {words[0]}, and this kernel refuses it ({error}):"
                " choose another with where"
            ) from None


def qdiscs(one: Impairment, mtu_bytes: int) -> list[tuple[list[str], list[str]]]:
    """Return where each qdisc is, and its words: netem, and below it tbf, which has the rate and its queue.

    netem's own rate would have its long queue, and counts a large TCP packet as one (tc-netem(8)).
    """
    by_netem = {
        "delay": [f"{round(value * 1e6)}us" for value in (one.delay_s, one.jitter_s) if value],
        "loss": _share(one.loss),
        "duplicate": _share(one.duplicate),
        "reorder": _share(one.reorder),
    }
    words = [word for name, values in by_netem.items() if values for word in (name, *values)]
    result = [(["root", "handle", "1:"], ["netem", *words, "limit", str(LIMIT)])] if words else []
    if one.rate_bps is not None:
        bucket = machine.token_bucket(one.rate_bps, mtu_bytes, one.queue_s, one.burst_bytes)
        result.append((["parent", "1:1"] if result else ["root"], bucket))
    if one.queue_packets is not None:
        result.append((["root"], ["pfifo", "limit", str(one.queue_packets)]))
    return result


def _share(value: float) -> list[str]:
    return [f"{100 * value:.6f}%"] if value else []
