"""What values a parameter or an option may have: its limit stands beside it, and refuses others in one sentence."""

import abc
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common.errors import BadInput, choose


class Limit(abc.ABC):
    """What values a parameter may have; stands at its field, as each of those below."""

    def check(self, name: str, value: Any) -> None:
        """Raise BadInput unless the value of the parameter `name`, or each value of a list, is allowed."""
        for one in value if isinstance(value, tuple) else (value,):
            if one is not None:
                self.check_one(name, one)

    @abc.abstractmethod
    def check_one(self, name: str, value: Any) -> None:
        """Raise BadInput unless this value is allowed."""

    def parse(self, name: str, text: str) -> Any:
        """Return the value that a text stands for. Raises BadInput unless it is allowed."""
        self.check_one(name, text)
        return text


@dataclass(frozen=True)
class Within(Limit):
    """The bounds of a number, and the reason. A text is a whole number if the least one is an `int`."""

    minimum: float
    maximum: float
    why: str = ""

    def parse(self, name: str, text: str) -> float:
        kind = type(self.minimum)
        try:
            number = kind(text)
        except ValueError:
            whole = "whole " if kind is int else ""
            raise BadInput(f"{name}={text}: a {whole}number is needed") from None
        self.check_one(name, number)
        return number

    def check_one(self, name: str, value: Any) -> None:
        if not self.minimum <= value <= self.maximum:
            because = f": {self.why}" if self.why else ""
            bounds = f"{self.minimum:.12g} to {self.maximum:.12g}"
            raise BadInput(f"{name}={value:.12g} is outside {bounds}{because}")


@dataclass(frozen=True)
class Offered(Limit):
    """Values that completion offers beside any others."""

    values: Iterable[Any]

    def check_one(self, name: str, value: Any) -> None:
        """Allow any value."""


@dataclass(frozen=True)
class OneOf(Offered):
    """All values that are allowed."""

    def check_one(self, name: str, value: Any) -> None:
        if value not in tuple(self.values):
            raise BadInput(f"{name}={value}: {choose(value, self.values)}")


@dataclass(frozen=True)
class Form(Limit):
    """The regular expression of a text, and an example in words."""

    pattern: str
    words: str

    def check_one(self, name: str, value: Any) -> None:
        if not re.fullmatch(self.pattern, value):
            several = all(re.fullmatch(self.pattern, one) for one in value.split(","))
            hint = "; a run takes one, and the grid of a sweep takes several" if several else ""
            raise BadInput(f"{name}={value!r} is not valid: write {self.words}{hint}")


@dataclass(frozen=True)
class UniqueItems:
    """A list has no value twice, and at least `min_items` values (0 or 1); the reason."""

    why: str = ""
    min_items: int = 1

    def check(self, name: str, value: Sequence[Any]) -> None:
        """Raise BadInput for a list that is too short, and for a value that is there twice."""
        if self.min_items == 0 and len(set(value)) < len(value):
            raise BadInput(f"{name} names a value twice: {', '.join(map(str, value))}; keep one of them")
        if self.min_items and len(set(value)) != max(1, len(value)):
            because = f": {self.why}" if self.why else ""
            raise BadInput(f"{name} needs at least one value, each once{because}")


UNIQUE, UNIQUE_OR_EMPTY = UniqueItems(), UniqueItems(min_items=0)
