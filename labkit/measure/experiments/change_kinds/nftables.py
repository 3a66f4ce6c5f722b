"""Changes by nftables: given rules, connection tracking, and rules that match nothing."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from labkit.common.errors import BadInput, Unsupported
from labkit.common.units import counted
from labkit.measure.endpoints import nftables
from labkit.measure.experiments.change_kinds.base import Files, Kind, Place, State, digest


class _Ruleset(Kind):
    """What adds rules of nftables to a namespace."""

    per_interface = False

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        listed = place.run("nftables", "nft", "list", "ruleset")
        rules = sum(bool(re.match(r"\t\t(?!type |\})\S", line)) for line in listed.splitlines())
        text = f"{counted(rules, 'line')} of rules, {digest(listed.encode())[:19]}"
        return {"nftables ruleset": text if listed.strip() else "none"}

    def _load(self, place: Place, rules: str, what: str) -> None:
        with place.kernel.file("rules.nft", rules.encode()) as path:
            place.run(what, "nft", "-f", path, lacking=("no such file",))


def _addresses(place: Place, what: str) -> str:
    """Return the addresses in a namespace. Raises Unsupported where frames pass a place between the ends without IP: a
    bridge, a switch and the parent of macvlan have none there, and br_netfilter hands no frames to IP's rules."""
    result = place.run("addresses", "ip", "-o", "address", "show", "scope", "global")
    if result.strip() or place.role != "between":
        return result
    for family in ("ip", "ip6"):
        with suppress(OSError):  # without br_netfilter
            if place.kernel.read(f"/proc/sys/net/bridge/bridge-nf-call-{family}tables").strip() == "1":
                return result
    raise Unsupported(
        f"{what} at {place} would have no effect, because frames pass it without IP: write `at server`"
    )


class Nftables(_Ruleset):
    """nftables rules for the namespace. The change contains the rules; they may not include other files."""

    takes: ClassVar = dict.fromkeys(needs := ("file", "rules", "digest"), r"(?s).*")
    example = "nftables rules.nft at server"

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        content = files.read(text)
        try:
            return {"file": Path(text).name, "rules": content.decode(), "digest": digest(content)}
        except UnicodeDecodeError:
            raise BadInput(f"{text} is not a text file") from None

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        if given.keys() != {"rules"}:
            return dict(given)
        rules = str(given["rules"])
        return {"file": "rules", "rules": rules, "digest": digest(rules.encode())}

    def check(self, options: Mapping[str, Any]) -> None:
        super().check(options)
        if digest(options["rules"].encode()) != options["digest"]:
            raise BadInput("nftables: the rules do not match the digest beside them")
        nftables.check_text(options["rules"], f"nftables {options['file']}")

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        self._load(place, options["rules"], f"nftables {options['file']}")


class Conntrack(_Ruleset):
    """Connection tracking of every packet in the namespace, enabled by a rule that checks the state."""

    example = "conntrack on at server"
    takes: ClassVar = {"state": "on"}
    RULES = (
        "table inet labkit_conntrack {\n"
        "  chain in { type filter hook prerouting priority -150; policy accept; ct state new; }\n"
        "  chain out { type filter hook output priority -150; policy accept; ct state new; }\n"
        "}\n"
    )

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        _addresses(place, "conntrack")
        self._load(place, self.RULES, "connection tracking by nftables")


class Rules(_Ruleset):
    """N nftables rules that every arriving packet is compared with and that none matches; between the ends also every
    forwarded one."""

    example = "rules 100 at server"
    takes: ClassVar = {"count": range(1, 10_001)}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        # These are for documentation (RFC 5737, RFC 3849), so no packet comes from there.
        source = "ip6 saddr 2001:db8::" if " inet6 " in _addresses(place, "rules") else "ip saddr 192.0.2."
        lines = [
            f"    {source}{number % 254 + 1} th dport {20000 + number} drop"
            for number in range(int(options["count"]))
        ]
        chains = {"in": "input"} | ({"through": "forward"} if place.role == "between" else {})
        for name, hook in chains.items():
            chain = [
                f"  chain {name} {{",
                f"    type filter hook {hook} priority 0; policy accept;",
                *lines,
                "  }",
            ]
            text = "\n".join(["table inet labkit_rules {", *chain, "}", ""])
            self._load(place, text, f"{options['count']} nftables rules")


NFTABLES, RULES, CONNTRACK = Nftables(), Rules(), Conntrack()
