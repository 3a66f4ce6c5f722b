"""What impairments do to packets: netem and tbf at the way out of an interface."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.common.errors import Failed, Unsupported
from labkit.measure.endpoints import Namespace
from labkit.measure.topologies.network.model import NetworkIndex
from labkit.measure.topologies.network.parts import Impairment
from labkit.measure.topologies.network.validate import Mtus
from labkit.system import machine, process

LIMIT = 1_000_000  # packets that netem may hold; its default of 1,000 would limit the rate


def apply(described: NetworkIndex, mtus: Mtus, spaces: Mapping[str, Namespace]) -> None:
    """Give each impaired interface its root qdisc. Raises Unsupported with tc's reason where this kernel lacks it."""
    for one in described.impairments:
        words = qdisc(one, mtus.of(described.interfaces[one.at, one.interface]))
        try:
            process.output(
                [
                    *spaces[one.at].prefix,
                    machine.require_program("tc"),
                    "qdisc",
                    "replace",
                    "dev",
                    one.interface,
                    "root",
                    *words,
                ]
            )
        except Failed as error:
            raise Unsupported(
                f"the impairment of {one.interface} ({one.at}) needs {words[0]}, and this kernel refuses it ({error}):"
                " choose another with where"
            ) from None


def qdisc(one: Impairment, mtu_bytes: int) -> list[str]:
    """Return the words behind `tc qdisc add dev … root`: tbf for a rate alone, netem for everything else."""
    by_netem = {
        "delay": _times(one.delay_s, one.jitter_s),
        "loss": _share(one.loss),
        "duplicate": _share(one.duplicate),
        "reorder": _share(one.reorder),
    }
    words = [word for name, values in by_netem.items() if values for word in (name, *values)]
    if not words:
        assert one.rate_bps is not None, "it was checked"
        return machine.token_bucket(one.rate_bps, mtu_bytes)
    rate = [] if one.rate_bps is None else ["rate", f"{int(one.rate_bps)}bit"]
    return ["netem", *words, *rate, "limit", str(LIMIT)]


def _times(delay_s: float, jitter_s: float) -> list[str]:
    return [f"{round(value * 1e6)}us" for value in (delay_s, jitter_s) if value]


def _share(value: float) -> list[str]:
    return [f"{100 * value:.6f}%"] if value else []
