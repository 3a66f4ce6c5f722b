"""Changes of routes and neighbours."""

from collections.abc import Mapping
from typing import Any, ClassVar

from labkit.measure.experiments.change_kinds.base import NAMES, Files, Kind, Place, State

ADDRESS = r"[0-9a-fA-F.:]{2,39}"


class Route(Kind):
    """An additional route of the namespace, over the interface of the place."""

    example = "route 192.0.2.0/24 via 10.2.0.1 at client"
    form = NAMES  # after the target
    takes: ClassVar = {"to": rf"default|{ADDRESS}(/\d{{1,3}})?", "via": ADDRESS, "metric|mtu": r"\d{1,10}"}
    needs = ("to",)

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        to, *rest = text.split(None, 1) or [""]
        return {"to": to, **(super().parse_text(rest[0], files) if rest else {})}

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        version = "-6" if ":" in options["to"] + options.get("via", "") else "-4"
        listed = place.run("routes", "ip", version, "route", "show", "table", "main")
        return {"routes": " | ".join(line.strip() for line in listed.splitlines())}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        named = [(name, str(options[name])) for name in ("via", "metric", "mtu") if name in options]
        words = [options["to"], *(word for pair in named for word in pair), "dev", place.interface]
        place.run(f"route to {options['to']}", "ip", "route", "add", *words)


class Neighbour(Kind):
    """A permanent neighbour entry of an interface."""

    example = "neighbour 10.2.0.9 02:00:00:00:00:09 at client"
    takes: ClassVar = {"address": ADDRESS, "mac": r"([0-9a-f]{2}:){5}[0-9a-f]{2}"}
    needs = ("address", "mac")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        shown = place.run("neighbours", "ip", "neighbour", "show", "dev", place.interface)
        own = [line for line in shown.splitlines() if line.split()[:1] == [options["address"]]]
        return {f"neighbour {options['address']}": " ".join(own).strip() or "none"}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [options["address"], "lladdr", options["mac"], "nud", "permanent", "dev", place.interface]
        place.run(f"neighbour {options['address']}", "ip", "neighbour", "replace", *words)


ROUTE, NEIGHBOUR = Route(), Neighbour()
