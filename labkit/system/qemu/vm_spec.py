"""Parse the description of a lab VM: its kernel, then options after commas."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from labkit.common.errors import BadInput

PROFILES = ("traffic", "tracing")
FORM = "vm:KERNEL[,cpus=N][,memory_mib=N][,profile=traffic|tracing][,append=WORD+WORD][,modules=NAME+NAME][,fresh]"


@dataclass(frozen=True)
class Shape:
    """The description of a lab VM.

    `kernel`: debian, a release, or the path of an image. `profile`: traffic (one thread per CPU), or tracing (one
    thread for all CPUs, with which tracers can be started safely under emulation). `append`: kernel parameters.
    `modules`: loaded before anything runs. `fresh`: boot for every run instead of once per sweep.
    """

    kernel: str
    cpus: int = 2
    memory_mib: int = 2048
    profile: str = "traffic"
    append: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    fresh: bool = False


Read = Callable[[str], object]


def number(minimum: int, maximum: int) -> Read:
    """Return a reader of numbers within these bounds."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,6}", text) or not minimum <= int(text) <= maximum:
            raise ValueError(f"a number from {minimum} to {maximum}")
        return int(text)

    return read


def one_of(*known: str) -> Read:
    """Return a reader of one of these words."""

    def read(text: str) -> str:
        if text not in known:
            raise ValueError(" or ".join(known))
        return text

    return read


def word_list(form: str) -> Read:
    """Return a reader of words of this form, separated by +."""

    def read(text: str) -> tuple[str, ...]:
        words = tuple(text.split("+"))
        if not all(re.fullmatch(form, word) for word in words):
            raise ValueError(f"words of the form {form}, with + between them")
        return words

    return read


FIELDS: dict[str, Read] = {
    "cpus": number(1, 64),
    "memory_mib": number(512, 262144),
    "profile": one_of(*PROFILES),
    "append": word_list(r"[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:/-]*)?"),
    "modules": word_list(r"[A-Za-z0-9_-]+"),
}


def parse(where: str) -> Shape:
    """Parse `where` into the shape of a lab VM. Raises BadInput, with one sentence, if it is invalid."""
    kernel, given = read(
        f"where={where}", "a lab VM", where.removeprefix("vm:"), {**FIELDS, "fresh": None}, FORM
    )
    return Shape(kernel, **given)  # type: ignore[arg-type]


def read(
    source: str, what: str, text: str, fields: Mapping[str, Read | None], form: str
) -> tuple[str, dict[str, object]]:
    """Parse a kernel and its options from `text`; an option whose reader is None takes no value.

    `source` is the whole parameter as the user wrote it and `what` its kind; both appear in error messages. Raises
    BadInput with one sentence.
    """
    kernel, *rest = text.split(",")
    if not re.fullmatch(r"[A-Za-z0-9_.+~/-]+", kernel):
        raise BadInput(f"{source}: {what} has the form {form}")
    given: dict[str, object] = {}
    for word in rest:
        name, equals, value = word.partition("=")
        if name in given:
            raise BadInput(f"{source}: {name} is given twice")
        if name not in fields or bool(equals) != (fields[name] is not None):
            raise BadInput(
                f"{source}: {word!r} is not a valid option ({', '.join(fields)}); the form is {form}"
            )
        reads = fields[name]
        try:
            given[name] = True if reads is None else reads(value)
        except ValueError as error:
            raise BadInput(f"{source}: {name} takes {error}") from None
    return kernel, given


def check(where: str) -> None:
    """Raise BadInput unless `where` describes a lab VM."""
    parse(where)
