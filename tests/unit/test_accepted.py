"""What a question takes, in short."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from holdfast.cli.accepted import brief, in_short
from holdfast.core.answers import schema_tree


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Inner:
    tags: list[str]


@dataclass
class Verdict:
    ok: bool
    inner: Inner
    note: str | None = None


@pytest.mark.parametrize(
    ("schema", "short"),
    [
        (None, "anything"),
        (bool, "true or false"),
        (int, "a whole number"),
        (float, "a number"),
        (str, "a text"),
        (str | None, "a text or null"),
        (Literal["a", "b"], '"a" or "b"'),
        (Literal[1, 2, None], "null or 1 or 2"),
        (Colour, '"blue" or "red"'),
        (list[int], "[a whole number, ...]"),
        (dict[str, int], "an object"),
        (datetime.date, "a text (date)"),
        (Verdict, '{"ok": true or false, "inner": {"tags": [a text, ...]}, "note"?: a text or null}'),
        ({"type": "integer", "minimum": 1, "maximum": 5}, "a whole number from 1 to 5"),
        ({"const": "yes"}, '"yes"'),
        ({"type": ["string", "integer"]}, "a text or a whole number"),
        ({"oneOf": [{"type": "null"}, {"enum": [1]}]}, "null or 1"),
        ({}, "anything"),
    ],
)
def test_a_schema_in_short(schema: Any, short: str) -> None:
    assert in_short(schema_tree(schema)) == short


@pytest.mark.parametrize(
    "schema",
    [
        5,
        "text",
        [],
        {"type": 5},
        {"type": [None, {}]},
        {"enum": "x"},
        {"properties": []},
        {"type": "object", "properties": {"a": 5}, "required": 5},
        {"$ref": "#/$defs/gone"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": 5, "$ref": 5},
        {"items": {"items": {}}, "type": "array"},
        {"enum": list(range(1000))},
        {"enum": ["x" * 1000]},
        {"anyOf": []},
    ],
)
def test_whatever_a_store_holds_as_a_schema_is_a_short_line(schema: Any) -> None:
    short = in_short(schema)
    assert len(short) <= 160
    assert "\n" not in short


def test_a_long_value_is_cut() -> None:
    assert brief({"a": 1}) == '{"a": 1}'
    assert len(brief("x" * 1000, 50)) == 50
