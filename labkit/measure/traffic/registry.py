"""The traffic generators, by name. GENERATORS is the one place to add a new one."""

from contextlib import suppress

from labkit.common.errors import BadInput, LabkitError, choose
from labkit.common.extensions import Registry
from labkit.measure.traffic.base import FlowGenerator, Generator, TrialGenerator

_HERE = "labkit.measure.traffic"
GENERATORS = Registry(
    "labkit.generators",
    Generator,  # type: ignore[type-abstract]
    {
        "iperf3": f"{_HERE}.iperf3:IPERF3",
        "ping": f"{_HERE}.ping:PING",
        "sockperf": f"{_HERE}.sockperf:SOCKPERF",
        "sockets": f"{_HERE}.sockets:REQUESTS",
        "connections": f"{_HERE}.sockets:CONNECTIONS",
        "wrk": f"{_HERE}.http:HTTP",
        "packets": f"{_HERE}.packet_generator:PACKETS",
        "trex": f"{_HERE}.trex.generator:TREX",
    },
    "generator={} is unknown",
)
# The generator of each protocol
USUAL = {
    "tcp": "iperf3", "udp": "iperf3", "ping": "ping", "udp_rr": "sockperf", "tcp_rr": "sockperf",
    "tcp_crr": "connections", "tcp_cc": "connections", "http": "wrk", "http_close": "wrk",
}  # fmt: skip
USUAL |= {
    protocol: name
    for name in reversed(GENERATORS.others)
    for protocol in GENERATORS[name].capabilities.protocols
    if protocol not in USUAL
}
PROTOCOLS = tuple(USUAL)
CARRYING_DATA = ("iperf3", *GENERATORS.others)  # those whose version is in rows, if they carry data


def default_generator(protocol: str) -> Generator:
    """Return the usual generator of this protocol. Raises BadInput with the list of protocols."""
    if protocol not in USUAL:
        raise BadInput(f"protocol={protocol} is unknown: {choose(protocol, PROTOCOLS)}")
    return GENERATORS[USUAL[protocol]]


def find_trial(name: str) -> TrialGenerator:
    """Return the generator `name`, which must run trials at a rate. Raises BadInput with the list of those that do."""
    result = GENERATORS.find(name)
    if not isinstance(result, TrialGenerator):
        able = [one.name for one in GENERATORS.values() if isinstance(one, TrialGenerator)]
        raise BadInput(f"generator={name} cannot run trials at a frame rate: choose {', '.join(able)}")
    return result


def versions() -> dict[str, str | None]:
    """Return the version of every generator that carries data, by name; None if it is not installed."""
    result: dict[str, str | None] = dict.fromkeys(
        name for name in CARRYING_DATA if isinstance(GENERATORS[name], FlowGenerator)
    )
    for name in result:
        with suppress(LabkitError):  # the other generators work without it
            result[name] = GENERATORS[name].version()
    return result
