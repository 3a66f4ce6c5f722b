"""Say in plain words why a value does not have its type, instead of in those of msgspec."""

import re

_TYPES = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "array": "a list",
    "object": "a mapping with names and values", "null": "none",
}  # fmt: skip
_SENTENCES = (
    (re.compile(r"Object missing required field (`.*`)"), r"\1 is missing"),
    (re.compile(r"Object contains unknown field (`.*`)"), r"there is no field \1"),
    (re.compile(r"Invalid (?:enum )?value ('.*')"), r"\1 is not one of the known values"),
)
_BOUND = re.compile(r"Expected `([^`]*)` (>=|<=) (\S+)")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?")


def wrong_type(error: Exception) -> str:
    """Return what a value of the wrong type should have been, with its place below the value that was converted.

    error: one that `msgspec.convert` raised.
    """
    text, _, place = str(error).partition(" - at `$")
    for pattern, words in _SENTENCES:
        text = pattern.sub(words, text)
    if match := _BOUND.fullmatch(text):
        text = f"{_types(match[1])} of at {'least' if match[2] == '>=' else 'most'} {float(match[3]):g} is needed"
    elif match := _EXPECTED.fullmatch(text):
        text = f"{_types(match[1])} is needed" + (f", not {_types(match[2])}" if match[2] else "")
    place = place.removesuffix("`").removeprefix(".")
    return f"{place}: {text}" if place else text


def _types(words: str) -> str:
    return " or ".join(_TYPES.get(one, one) for one in words.split(" | "))
