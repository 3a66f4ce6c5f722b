"""What a lab VM is asked to be, as one word: its kernel, and options behind commas."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from labkit.errors import BadInput

PROFILES = ("traffic", "tracing")
FORM = "vm:KERNEL[,cpus=N][,memory_mib=N][,profile=traffic|tracing][,append=WORD+WORD][,modules=NAME+NAME][,fresh]"


@dataclass(frozen=True)
class Shape:
    """A lab VM that is asked for.

    `kernel`: debian, a release, or the path of an image. `profile`: traffic (as many threads as CPUs), or tracing (one
    thread for all CPUs, in which arming tracers is safe under emulation). `append`: words for the kernel's command
    line. `modules`: loaded before anything runs. `fresh`: booted for every run instead of once for a sweep.
    """

    kernel: str
    cpus: int = 2
    memory_mib: int = 2048
    profile: str = "traffic"
    append: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    fresh: bool = False


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,6}", text) or not least <= int(text) <= most:
            raise ValueError(f"a number from {least} to {most}")
        return int(text)

    return read


def _profile(text: str) -> str:
    if text not in PROFILES:
        raise ValueError(" or ".join(PROFILES))
    return text


def _words(form: str) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        words = tuple(text.split("+"))
        if not all(re.fullmatch(form, word) for word in words):
            raise ValueError(f"words of the form {form}, with + between them")
        return words

    return read


_READ: dict[str, Callable[[str], object]] = {
    "cpus": _number(1, 64),
    "memory_mib": _number(512, 262144),
    "profile": _profile,
    "append": _words(r"[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:/-]*)?"),
    "modules": _words(r"[A-Za-z0-9_-]+"),
}


def parse(where: str) -> Shape:
    """The shape that a `where` asks for. Raises BadInput in one sentence for what is none."""
    kernel, *rest = where.removeprefix("vm:").split(",")
    if not re.fullmatch(r"[A-Za-z0-9_.+~/-]+", kernel):
        raise BadInput(f"where={where}: a lab VM is asked for as {FORM}")
    given: dict[str, object] = {}
    for word in rest:
        name, equals, value = word.partition("=")
        if name in given:
            raise BadInput(f"where={where}: {name} is given twice")
        if word == "fresh":
            given["fresh"] = True
            continue
        if name not in _READ or not equals:
            raise BadInput(
                f"where={where}: {word!r} is none of {', '.join(_READ)}, fresh; the form is {FORM}"
            )
        try:
            given[name] = _READ[name](value)
        except ValueError as error:
            raise BadInput(f"where={where}: {name} takes {error}") from None
    return Shape(kernel, **given)  # type: ignore[arg-type]


def check(where: str) -> None:
    """Raises BadInput unless `where` is of the form."""
    parse(where)
