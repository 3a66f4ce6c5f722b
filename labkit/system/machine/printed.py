"""What ip, tc and bridge print of a network namespace."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from labkit.common.errors import LabkitError
from labkit.system import process

CLASSFUL = {"htb", "hfsc", "cbq", "drr", "qfq", "ets"}
# Queueing disciplines that take filters; ingress and clsact do, too.
FILTERED = CLASSFUL | {"prio", "multiq", "fq_codel", "fq_pie", "sfq", "sfb", "cake", "choke", "dsmark"}

Objects = list[dict[str, Any]]


class Printed:
    """What programs print of a namespace. Lists of all interfaces are read once.

    `run` runs a program with its words in the namespace, and returns how it ended.
    """

    def __init__(self, run: Callable[..., process.Ended]) -> None:
        self._run = run

    def text(self, name: str, *words: str) -> str:
        """Return what a program prints; "" if it fails or is not installed."""
        with suppress(LabkitError):
            ended = self._run(name, *words)
            return ended.stdout.strip() if ended.returncode == 0 else ""
        return ""

    def objects(self, name: str, *words: str) -> Objects:
        """Return the objects that a program prints as JSON; none if it fails or is not installed."""
        with suppress(ValueError):
            return [one for one in json.loads(self.text(name, *words) or "[]") if isinstance(one, dict)]
        return []

    @cached_property
    def links(self) -> Objects:
        """The interfaces."""
        return self.objects("ip", "-d", "-j", "link", "show")

    @cached_property
    def qdiscs(self) -> dict[str, Objects]:
        """The queueing disciplines by interface."""
        result: dict[str, Objects] = {}
        for one in self.objects("tc", "-j", "qdisc", "show"):
            result.setdefault(str(one.get("dev")), []).append(one)
        return result

    @cached_property
    def vlans(self) -> dict[str, dict[int | None, tuple[bool, bool]]]:
        """The VLANs of bridges and of their ports by the names of interfaces: by numbers, whether frames without a tag
        that enter are in it, and whether it leaves without a tag."""
        return {
            str(one.get("ifname")): {
                number: ("PVID" in vlan.get("flags", ()), "Egress Untagged" in vlan.get("flags", ()))
                for vlan in one.get("vlans", ())
                for number in range(vlan["vlan"], vlan.get("vlanEnd", vlan["vlan"]) + 1)
            }
            for one in self.objects("bridge", "-j", "vlan", "show")
        }

    def filters(self, interface: str, *options: str) -> dict[str, str]:
        """Return what tc prints of the filters of an interface now, by where they see packets: `ingress`, `egress`, or
        "" for the root qdisc."""
        kinds = {str(one.get("kind")) for one in self.qdiscs.get(interface, ())}
        # A plain ingress qdisc answers for all of these words with the same filters (ingress_tcf_block), and one with
        # classes for none of them.
        sides = ["ingress"] if kinds & {"ingress", "clsact"} else []
        sides += ["egress"] if "clsact" in kinds else []
        sides += [""] if kinds & FILTERED else []
        show = (*options, "filter", "show", "dev", interface)
        return {side: self.text("tc", *show, *side.split()) for side in sides}


def entries(text: str) -> list[str]:
    """Return the entries of a list of the kernel, as `ip` prints it.

    Lines that begin with white space continue the entry before, as those of an XFRM policy do.
    """
    lines = re.sub(r"\n[ \t]+", " ", text).splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]
