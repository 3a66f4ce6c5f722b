"""Changes of routes and neighbours."""

from collections.abc import Mapping
from typing import Any, ClassVar

from labkit.measure.experiments.change_kinds import checks
from labkit.measure.experiments.change_kinds.base import Files, Kind, Place, State

ADDRESS = r"[0-9a-fA-F.:]{2,39}"


class Route(Kind):
    """An additional route of the namespace, over the interface of the place."""

    example = "route 192.0.2.0/24 via 10.2.0.1 at client"
    takes: ClassVar = {"to": rf"default|{ADDRESS}(/\d{{1,3}})?", "via": ADDRESS, "metric|mtu": r"\d{1,10}"}
    needs = ("to",)

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        to, *rest = text.split() or [""]
        return {"to": to, **(checks.values_by_name("route", " ".join(rest)) if rest else {})}

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return {name: str(value) for name, value in given.items()}

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        version = "-6" if ":" in options["to"] else "-4"
        listed = checks.output_or_raise(
            place.kernel.run("ip", version, "route", "show", "table", "main"), "routes"
        )
        return {"routes": " | ".join(line.strip() for line in listed.splitlines())}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [
            word
            for name in ("via", "metric", "mtu")
            if name in options
            for word in (name, str(options[name]))
        ]
        checks.output_or_raise(
            place.kernel.run("ip", "route", "add", options["to"], *words, "dev", place.interface),
            f"route to {options['to']}",
        )


class Neighbour(Kind):
    """A permanent neighbour entry of an interface."""

    example = "neighbour 10.2.0.9 02:00:00:00:00:09 at client"
    takes: ClassVar = {"address": ADDRESS, "mac": r"([0-9a-f]{2}:){5}[0-9a-f]{2}"}
    needs = ("address", "mac")

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        shown = checks.output_or_raise(
            place.kernel.run("ip", "neighbour", "show", "dev", place.interface), "neighbours"
        )
        own = [line for line in shown.splitlines() if line.split()[:1] == [options["address"]]]
        return {f"neighbour {options['address']}": " ".join(own).strip() or "none"}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        words = [options["address"], "lladdr", options["mac"], "nud", "permanent", "dev", place.interface]
        checks.output_or_raise(
            place.kernel.run("ip", "neighbour", "replace", *words), f"neighbour {options['address']}"
        )


ROUTE, NEIGHBOUR = Route(), Neighbour()
