"""The traffic generators, by name. GENERATORS is the one place to add a new one."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.common import extensions
from labkit.common.errors import BadInput, LabkitError, choose
from labkit.measure.traffic.base import FlowGenerator, Generator, TrialGenerator
from labkit.measure.traffic.iperf3 import Iperf3
from labkit.measure.traffic.packet_generator import PacketGenerator
from labkit.measure.traffic.ping import Ping
from labkit.measure.traffic.trex.generator import Trex

GENERATORS: dict[str, Generator] = {one.name: one for one in (Iperf3(), Ping(), PacketGenerator(), Trex())}
GENERATORS |= extensions.load_all("labkit.generators", Generator, GENERATORS)  # type: ignore[type-abstract]
PROTOCOLS = tuple(dict.fromkeys(name for one in GENERATORS.values() for name in one.capabilities.protocols))


def find(name: str) -> Generator:
    """Return the generator `name`. Raises BadInput with the list of generators if there is none."""
    if name not in GENERATORS:
        raise BadInput(f"generator={name} is unknown: {choose(name, GENERATORS)}")
    return GENERATORS[name]


def default_generator(protocol: str) -> Generator:
    """Return the first generator that supports this protocol. Raises BadInput with the list of protocols."""
    for one in GENERATORS.values():
        if protocol in one.capabilities.protocols:
            return one
    raise BadInput(f"protocol={protocol} is unknown: {choose(protocol, PROTOCOLS)}")


def find_trial(name: str) -> TrialGenerator:
    """Return the generator `name`, which must run trials at a rate. Raises BadInput with the list of those that do."""
    result = find(name)
    if not isinstance(result, TrialGenerator):
        able = [one.name for one in GENERATORS.values() if isinstance(one, TrialGenerator)]
        raise BadInput(f"generator={name} cannot run trials at a frame rate: choose {', '.join(able)}")
    return result


def versions() -> dict[str, str | None]:
    """Return the version of every generator that carries data, by name; None if it is not installed."""
    return dict(_versions())


def _versions() -> Iterator[tuple[str, str | None]]:
    for name, one in GENERATORS.items():
        if isinstance(one, FlowGenerator):
            try:
                yield name, one.version()
            except LabkitError:  # the other generators work without it
                yield name, None
