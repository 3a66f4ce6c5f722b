"""Parameters: typed, checked before anything runs; errors are one sentence with the allowed values."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec

from labkit.common.errors import BadInput, did_you_mean
from labkit.common.limits import Form, Offered, OneOf, UniqueItems, Within
from labkit.common.plain_types import wrong_type

Described = TypeVar("Described")
MAX_INTEGER = 1 << 62  # the largest integer that JSON and the kernel can hold


class CodeParameter(NamedTuple):
    """A parameter that names something that runs with the user's rights.

    `what`: words of the refusal that say what the parameter names. `flag`: the word in LABKIT_ALLOW that lets a sweep's
    file set it.
    `digest_parameter`: the parameter that gets the SHA-256 of the file of Python; empty for a folder of programs.
    """

    what: str
    flag: str
    digest_parameter: str = ""


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen parameters of an experiment.

    A subclass has fields with defaults, each with its help and limits, and `check` for what one field alone cannot
    express: `rounds: Annotated[int, "fresh set-ups of all arms", Within(1, 1000)] = 1`. A subclass that gives a field
    another default or help keeps the rest. `PARSERS` parse special values, by parameter name.
    `ABSENT`: inherited parameters that the experiment does not have: they keep their default. `INSTEAD`: what to use
    for one of them. `CODE`: the parameters that name what runs.
    """

    PARSERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    ABSENT: ClassVar[tuple[str, ...]] = ()
    INSTEAD: ClassVar[Mapping[str, str]] = {}
    CODE: ClassVar[Mapping[str, CodeParameter]] = {}

    @classmethod
    def help(cls) -> dict[str, str]:
        """Return the help of each parameter, by name; first of those that the class itself has."""
        return {name: words for name, words in described(cls, str).items() if name not in cls.ABSENT}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the parameters from names and values; values may be texts from a command line (`1,2,8` for a list,
        `none`).

        Raises BadInput for an unknown name, with the known ones, and for an invalid value.
        """
        made = cls(**cls.values_of(given))
        made.check()
        return made

    @classmethod
    def values_of(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values with the types of their parameters, as `of` does, whatever the others are."""
        hints = _hints(cls)
        types = {name: hints[name] for name in cls.help()}
        values = {}
        for name, value in given.items():
            if name not in types:
                there, instead = ", ".join(sorted(types)), cls.INSTEAD.get(name)
                near = f" (use {instead} instead)" if instead else did_you_mean(name, types)
                raise BadInput(f"there is no parameter {name}{near}; there are: {there}")
            parse = cls.PARSERS.get(name)
            values[name] = parse(value) if parse else _value(name, value, types[name])
        return values

    @classmethod
    def like(cls, other: Parameters, **changed: Any) -> Self:
        """Return parameters with the values of `other`, of a subclass, except those in `changed`; not checked."""
        return cls(**{name: getattr(other, name) for name in cls.__struct_fields__} | changed)

    @classmethod
    def of_recorded(cls, recorded: Mapping[str, Any]) -> Self:
        """Return the parameters of a run, as `of` does, without those that the experiment had once."""
        return cls.of({name: value for name, value in recorded.items() if name not in cls.ABSENT})

    @classmethod
    def known_values(cls, name: str) -> list[str]:
        """Return the values of a parameter that completion offers; none for numbers and free texts."""
        if isinstance(one := described(cls, Offered).get(name), Offered):
            return list(map(str, one.values))
        kind = _hints(cls)[name]
        return ["true", "false"] if bool in (kind, *typing.get_args(kind)) else []

    def check(self) -> None:
        """Raise BadInput for invalid values."""
        self.check_values()

    def check_values(self) -> None:
        """Raise BadInput for a value that its parameter's limits do not allow."""
        for kind in (UniqueItems, Within, OneOf, Form):
            for name, limit in described(type(self), kind).items():
                limit.check(name, getattr(self, name))

    @property
    def companion(self) -> str | None:
        """The generator whose companion the run needs (`Generator.companion`), or None."""
        return None

    def check_programs(self) -> None:
        """Raise Unsupported where a program that the experiment cannot do without is missing or too old."""

    def asdict(self) -> dict[str, Any]:
        """Return names and values in the form of JSON."""
        result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return {name: value for name, value in result.items() if name not in self.ABSENT}


_hints = functools.cache(typing.get_type_hints)  # a sweep asks for each of its points


@functools.cache
def described(cls: type[msgspec.Struct], kind: type[Described]) -> dict[str, Described]:
    """Return what stands at the fields of this kind (`str`: help), by name; what a class does not have, it inherits."""
    result: dict[str, Described] = {}
    for each in cls.__mro__[:-1]:
        hints = typing.get_type_hints(each, include_extras=True)
        for name in inspect.get_annotations(each):
            for one in getattr(hints[name], "__metadata__", ()):
                if isinstance(one, kind):
                    result.setdefault(name, one)
    return result


def _value(name: str, given: Any, kind: Any) -> Any:
    value = given
    if typing.get_origin(kind) is tuple and not isinstance(given, (list, tuple)):
        parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else [given]
        value = [] if given in ("none", "") else parts
    if isinstance(value, str) and value.lower() in ("none", "null", ""):
        value = None
    try:
        result = msgspec.convert(value, kind, strict=False)
        for number in result if isinstance(result, tuple) else (result,):
            if isinstance(number, int) and abs(number) > MAX_INTEGER:
                raise BadInput(f"{name}={str(given)[:30]}… is too large for any parameter")
        return result
    except msgspec.ValidationError as error:
        if not isinstance(given, bool) and kind in (int, int | None) and _is_fraction(value):
            unit = " of seconds" if name.endswith("_s") else ""
            raise BadInput(f"{name}={given}: write a whole number{unit}, for example 1") from None
        shown = f"[{','.join(map(str, given))}]" if isinstance(given, (list, tuple)) else given
        if str(error).startswith("Number out of range"):
            raise BadInput(f"{name}={str(shown)[:30]}… is too large for any parameter") from None
        words = wrong_type(error).split(": ")[-1]
        if words.startswith("a number") and (match := re.fullmatch(r"([\d.]+)([kMG])\S*", str(value))):
            words += f": write {match[1]}e{' kMG'.index(match[2]) * 3}"
        raise BadInput(f"{name}={shown}: {words}") from None


def _is_fraction(value: Any) -> bool:
    """Return whether the value, or the text, is a number that is not whole."""
    try:
        return not float(value).is_integer()
    except (TypeError, ValueError, OverflowError):
        return False


def refuse_given(parameters: Parameters, names: Iterable[str], why: str) -> None:
    """Raise BadInput, with the reason, if a parameter differs from its default."""
    for name in names:
        if (given := getattr(parameters, name)) != getattr(type(parameters)(), name):
            raise BadInput(f"{name}={given}: {why}")
