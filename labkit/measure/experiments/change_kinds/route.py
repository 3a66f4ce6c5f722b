"""Changes of routes and neighbours."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.experiments.change_kinds import checks
from labkit.measure.experiments.change_kinds.base import Files, Kind, Place, State


class Route(Kind):
    """An additional route of the namespace, over the interface of the place."""

    example = "route 192.0.2.0/24 via 10.2.0.1 at client"

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        to, *rest = text.split() or [""]
        return {"to": to, **(checks.values_by_name("route", " ".join(rest)) if rest else {})}

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return {name: str(value) for name, value in given.items()}

    def check(self, options: Mapping[str, Any]) -> None:
        if not {"to"} <= options.keys() <= {"to", "via", "metric", "mtu"}:
            raise BadInput(
                f"route takes a prefix, and the options via, metric and mtu: for example `{self.example}`"
            )
        _address("route", options["to"], prefix=True)
        if "via" in options:
            _address("route via", options["via"])
        for name in ("metric", "mtu"):
            if name in options:
                checks.whole_number(f"route {name}", options[name], 1, 1 << 30)

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

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        words = text.split()
        if len(words) != 2:
            raise BadInput(f"neighbour {text!r}: write ADDRESS MAC")
        return {"address": words[0], "mac": words[1]}

    def check(self, options: Mapping[str, Any]) -> None:
        checks.text_options("neighbour", options, "address", "mac")
        _address("neighbour", options["address"])
        if not re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", options["mac"]):
            raise BadInput(f"neighbour {options['mac']}: a MAC address is like 02:00:00:00:00:09")

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


def _address(kind: str, text: Any, prefix: bool = False) -> None:
    if prefix and text == "default":
        return
    try:
        (ipaddress.ip_network if prefix else ipaddress.ip_address)(str(text))
    except ValueError:
        raise BadInput(
            f"{kind} {text}: write for example {'10.9.0.0/16' if prefix else '10.9.0.1'}"
        ) from None


ROUTE, NEIGHBOUR = Route(), Neighbour()
