"""The change that watches an interface with labkit's own monitor, to measure its cost beside that of a mirror."""

from collections.abc import Mapping
from typing import Any, ClassVar

from labkit.common.errors import Unsupported
from labkit.measure.endpoints import Namespace
from labkit.measure.experiments.change_kinds.base import Kind, Place, State
from labkit.measure.observers.capture import CapturePoint
from labkit.measure.observers.monitor import Monitor, Request, sampler
from labkit.system import netlink
from labkit.system.machine import settings


class Monitored(Kind):
    """labkit's monitor at an interface, with a sampler; it counts and keeps packets until the topology is removed."""

    example = "monitor one_in:100 at between:port0"
    takes: ClassVar = {"sample": ".*"}

    def check(self, options: Mapping[str, Any]) -> None:
        super().check(options)
        sampler(options["sample"])

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        space = _space(place)
        with netlink.inside(space.fd):  # which names its interfaces
            return settings.packet_sockets(space.read("/proc/net/packet"))

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        hop = CapturePoint(_space(place), place.interface)
        place.at_end.callback(Monitor(hop, Request(sample=options["sample"])).kill)


def _space(place: Place) -> Namespace:
    if not isinstance(place.kernel, Namespace):
        raise Unsupported("the monitor cannot watch inside a guest: use endpoint=namespace or container")
    return place.kernel


MONITOR = Monitored()
