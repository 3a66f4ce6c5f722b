"""Parameters: typed, checked before anything runs; errors are one sentence with the allowed values."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import msgspec

from labkit.common.errors import BadInput
from labkit.common.plain_types import wrong_type

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

    A subclass has fields with defaults, and `check` for what types cannot express. `PARSERS` parse special values, by
    parameter name. `NOT_RECORDED`: parameters that nothing uses, so a run does not record them. `VALUES` are those that
    completion offers, by parameter name; a subclass adds its own. `CODE`: the parameters that name what runs.
    """

    PARSERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    NOT_RECORDED: ClassVar[tuple[str, ...]] = ()
    VALUES: ClassVar[Mapping[str, Iterable[str]]] = {}
    CODE: ClassVar[Mapping[str, CodeParameter]] = {}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the parameters from names and values; values may be texts from a command line (`1,2,8` for a list,
        `none`).

        Raises BadInput for an unknown name, with the known ones, and for an invalid value.
        """
        hints = typing.get_type_hints(cls)
        types = {name: hints[name] for name in cls.__struct_fields__}
        values = {}
        for name, value in given.items():
            if name not in types:
                there = ", ".join(sorted(types))
                raise BadInput(f"there is no parameter {name}{did_you_mean(name, types)}; there are: {there}")
            parse = cls.PARSERS.get(name)
            values[name] = parse(value) if parse else _value(name, value, types[name])
        made = cls(**values)
        made.check()
        return made

    @classmethod
    def like(cls, other: Parameters, **changed: Any) -> Self:
        """Return parameters with the values of `other`, of a subclass, except those in `changed`; not checked."""
        return cls(**{name: getattr(other, name) for name in cls.__struct_fields__} | changed)

    @classmethod
    def known_values(cls, name: str) -> list[str]:
        """Return the values of a parameter that completion offers; none for numbers and free texts."""
        for each in cls.__mro__:
            if name in (own := vars(each).get("VALUES", {})):
                return list(own[name])
        kind = typing.get_type_hints(cls).get(name)
        return ["true", "false"] if bool in (kind, *typing.get_args(kind)) else []

    def check(self) -> None:
        """Raise BadInput for invalid values."""

    @property
    def companion(self) -> str | None:
        """The generator whose companion the run needs (`Generator.companion`), or None."""
        return None

    def check_programs(self) -> None:
        """Raise Unsupported where a program that the experiment cannot do without is missing or too old."""

    def asdict(self) -> dict[str, Any]:
        """Return names and values in the form of JSON."""
        result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return {name: value for name, value in result.items() if name not in self.NOT_RECORDED}


def _value(name: str, given: Any, kind: Any) -> Any:
    value = given
    if typing.get_origin(kind) is tuple and not isinstance(value, (list, tuple)):
        value = [] if value in ("none", "") else value
    if typing.get_origin(kind) is tuple and not isinstance(value, (list, tuple)):
        value = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
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
        shown = ",".join(map(str, given)) if isinstance(given, (list, tuple)) else given
        if str(error).startswith("Number out of range"):
            raise BadInput(f"{name}={str(shown)[:30]}… is too large for any parameter") from None
        raise BadInput(f"{name}={shown}: {wrong_type(error).split(': ')[-1]}") from None


def _is_fraction(value: Any) -> bool:
    """Return whether the value, or the text, is a number that is not whole."""
    try:
        return not float(value).is_integer()
    except (TypeError, ValueError, OverflowError):
        return False


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean …?)` with the known name that is closest, or nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def within(name: str, value: float | None, minimum: float, maximum: float, why: str = "") -> None:
    """Raise BadInput unless value is absent or lies within the bounds."""
    if value is not None and not minimum <= value <= maximum:
        because = f": {why}" if why else ""
        raise BadInput(f"{name}={value:.12g} is outside {minimum:.12g} to {maximum:.12g}{because}")


def check_unused(parameters: Parameters, names: tuple[str, ...], words: Mapping[str, str]) -> None:
    """Raise BadInput, with the message of each, if an unused parameter differs from its default."""
    for name in names:
        if (given := getattr(parameters, name)) != getattr(type(parameters)(), name):
            raise BadInput(f"{name}={given}: {words[name]}")


def each_once(name: str, values: Sequence[Any], why: str = "") -> None:
    """Raise BadInput if there is no value, or one twice."""
    if not values or len(set(values)) < len(values):
        because = f": {why}" if why else ""
        raise BadInput(f"{name} needs at least one value, each once{because}")


def one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    """Raise BadInput, with the allowed values, unless `value` is one of them."""
    if value not in known:
        raise BadInput(f"{name}={value}: choose {', '.join(map(str, known))}")
