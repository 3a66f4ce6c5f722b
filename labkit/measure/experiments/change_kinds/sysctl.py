"""Changes of sysctls: those of a namespace, and those of the whole machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported, did_you_mean
from labkit.measure.experiments.change_kinds.base import ASSIGNMENT, Files, Kind, Place, State, refused
from labkit.system.machine import sysctl_journal

NAME = r"(?!.*\.\.)net([./][A-Za-z0-9_-][A-Za-z0-9_.-]*)+"
VALUE = r"[A-Za-z0-9_ \t.,:-]{1,200}"


class Sysctl(Kind):
    """A sysctl of the network namespace; in a guest, of the guest's kernel."""

    per_interface = False
    example = "sysctl net.ipv4.conf.all.rp_filter=1 at server"
    form = ASSIGNMENT
    takes: ClassVar = {NAME: VALUE}
    allowed_names = r"(?s)net[./].*"
    why_not_others = "only net.* belongs to a namespace; use machine_sysctl for others"

    def parse_mapping(self, given: Mapping[str, Any], files: Files) -> dict[str, Any]:
        return {
            name: " ".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in given.items()
        }

    def check(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if not re.fullmatch(self.allowed_names, name):
                raise BadInput(f"{self.name} {name}: {self.why_not_others}")
            if name.replace("/", ".") == "net.core.default_qdisc":
                raise BadInput(
                    f"{self.name} {name}: it has no effect on interfaces that are up, as those of an arm: use `qdisc"
                    " fq at client`"
                )
        super().check(options)

    def state(self, place: Place, options: Mapping[str, Any]) -> State:
        return {name: _read(place, name) for name in options}

    def apply(self, place: Place, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            outside = _outside(name)
            _write(place, name, value)
            if (now := _outside(name)) != outside and outside is not None:
                _path(name).write_text(outside)
                raise Failed(
                    f"sysctl {name} is the machine's, not the namespace's: labkit restored {outside!r} after {now!r}:"
                    " use machine_sysctl NAME=VALUE with LABKIT_ALLOW=machine_sysctl"
                )

    def verify(self, after: State, options: Mapping[str, Any], place: Place) -> None:
        for name, value in options.items():
            if _numbers(value) and _numbers(after[name]) and _numbers(value) != _numbers(after[name]):
                raise Failed(f"{place}: the kernel set sysctl {name} to {after[name]} instead of {value}")


def _numbers(text: str) -> list[int]:
    """Return the numbers of a text of numbers, else an empty list: a kernel may write other values in another form."""
    words = text.split()
    return [int(word) for word in words] if all(re.fullmatch(r"-?\d+", word) for word in words) else []


def _path(name: str) -> Path:
    """Return the file of a sysctl, in the caller's network namespace."""
    return Path("/proc/sys", *(name.split("/") if "/" in name else name.split(".")))


def _outside(name: str) -> str | None:
    """Return the value in the experiment's own network namespace, None if it does not exist there."""
    try:
        return " ".join(_path(name).read_text().split())
    except OSError:
        return None


def _read(place: Place, name: str) -> str:
    try:
        return " ".join(place.kernel.read(str(_path(name))).split())
    except (OSError, LabkitError) as error:
        words, path = getattr(error, "strerror", None) or error, _path(name)
        known = [one.name for one in path.parent.glob("*")]
        # tcp_mem is the machine's, and is not in a namespace beside tcp_wmem.
        if path.name != "tcp_mem" and (near := did_you_mean(path.name, known, least=0.85)):
            raise BadInput(f"this kernel has no sysctl {name}{near}") from None
        raise Unsupported(
            f"this kernel has no sysctl {name} in a network namespace of its own ({words}); a sysctl of the whole"
            f" machine is changed by machine_sysctl {name}=VALUE, with LABKIT_ALLOW=machine_sysctl in the environment"
        ) from None


def _write(place: Place, name: str, value: str) -> None:
    try:
        place.kernel.write(str(_path(name)), value.encode())
    except OSError as error:
        raise refused(error, f"sysctl {name}={value}") from None


class MachineSysctl(Sysctl):
    """A sysctl of the whole machine, changed only while the arm is measured.

    `machine.sysctl_journal` restores it.
    """

    placed = False
    example = "machine_sysctl net.core.high_order_alloc_disable=1"
    takes: ClassVar = {sysctl_journal.ALLOWED: VALUE}
    allowed_names = sysctl_journal.ALLOWED
    why_not_others = "only net.* (not forwarding, not disable_ipv6) and kernel.sched_* may be changed"


SYSCTL, MACHINE_SYSCTL = Sysctl(), MachineSysctl()
