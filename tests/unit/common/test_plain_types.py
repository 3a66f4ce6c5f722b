"""Values of wrong types are refused in plain words, with the place of the value."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from labkit.common.plain_types import wrong_type


class Part(msgspec.Struct, forbid_unknown_fields=True):
    at: str
    mtu_bytes: int | None = None
    kind: Literal["bridge", "veth"] = "veth"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([5], "[0]: a mapping with names and values is needed, not a whole number"),
        ([{"at": "n1"}, {"at": 5}], "[1].at: a text is needed, not a whole number"),
        ([{"at": "n1", "mtu_bytes": "x"}], "[0].mtu_bytes: a whole number or none is needed, not a text"),
        ([{}], "[0]: `at` is missing"),
        ([{"at": "n1", "z": 1}], "[0]: there is no field `z`"),
        ([{"at": "n1", "kind": "nod"}], "[0].kind: 'nod' is not one of the known values"),
        ("n1", "a list is needed, not a text"),
    ],
)
def test_wrong_type(given: Any, words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(given, list[Part])
    assert wrong_type(caught.value) == words
