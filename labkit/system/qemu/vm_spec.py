"""Parse the description of a lab VM: its kernel, then options after commas."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.common.errors import BadInput
from labkit.common.limits import Form, Limit, OneOf, Within

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


@dataclass(frozen=True)
class Words(Form):
    """Words of a form, separated by +."""

    def parse(self, name: str, text: str) -> tuple[str, ...]:
        words = tuple(text.split("+"))
        self.check(name, words)
        return words


FIELDS: dict[str, Limit] = {
    "cpus": Within(1, 64),
    "memory_mib": Within(512, 262144),
    "profile": OneOf(PROFILES),
    "append": Words(r"[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:/-]*)?", "WORD=VALUE+WORD"),
    "modules": Words(r"[A-Za-z0-9_-]+", "NAME+NAME"),
}


def parse(where: str) -> Shape:
    """Parse `where` into the shape of a lab VM. Raises BadInput, with one sentence, if it is invalid."""
    kernel, given = read(
        f"where={where}", "a lab VM", where.removeprefix("vm:"), {**FIELDS, "fresh": None}, FORM
    )
    return Shape(kernel, **given)  # type: ignore[arg-type]


def read(
    source: str, what: str, text: str, fields: Mapping[str, Limit | None], form: str
) -> tuple[str, dict[str, object]]:
    """Parse a kernel and its options from `text`; an option whose limit is None takes no value.

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
        limit = fields[name]
        given[name] = True if limit is None else limit.parse(f"{source}: {name}", value)
    return kernel, given
