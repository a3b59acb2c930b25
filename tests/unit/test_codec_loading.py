"""Loading builds what the program declares, and nothing that the data names; whatever else is a clear error."""

from __future__ import annotations

import enum
import re
import sys
from dataclasses import dataclass, field, make_dataclass
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exactly import exactly
from holdfast.core import scalars
from holdfast.core.codec import Codec, Tree, dumps, loads
from holdfast.errors import NotLoadableError


class Colour(enum.Enum):
    RED = 1


class Right(enum.Flag):
    READ = 1


@dataclass
class Report:
    title: str
    size: int = 3
    tags: list[str] = field(default_factory=lambda: ["new"])


class Point(msgspec.Struct):
    x: int
    y: int = 7
    tags: list[str] = msgspec.field(default_factory=lambda: ["new"])


class Model(pydantic.BaseModel):
    title: str
    size: int = 3
    tags: list[str] = pydantic.Field(default_factory=lambda data: [data["title"]])
    _cache: dict[str, int] = pydantic.PrivateAttr(default_factory=dict)


@attrs.define
class Thing:
    x: int
    double: int = attrs.Factory(lambda self: self.x * 2, takes_self=True)
    tags: list[str] = attrs.Factory(lambda: ["new"])


class Pair(NamedTuple):
    left: int
    right: int = 7


class Tags(list[str]):
    pass


CODEC = Codec([Colour, Right, Report, Point, Model, Thing, Pair, Tags])


def stored(name: str, **fields: Tree) -> Tree:
    return {"$": "object", "type": name, "v": fields}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (stored("Report", title="a"), Report("a", 3, ["new"])),
        (stored("Point", x=1), Point(1, 7, ["new"])),
        (stored("Model", title="a"), Model.model_construct({"title"}, title="a", size=3, tags=["a"])),
        (stored("Thing", x=2), Thing(2, 4, ["new"])),
        (stored("Pair", left=1), Pair(1, 7)),
    ],
    ids=["dataclass", "Struct", "pydantic", "attrs", "NamedTuple"],
)
def test_a_field_that_is_new_since_is_filled_from_its_default(tree: Tree, expected: Any) -> None:
    value = CODEC.decode(tree)
    assert value == expected
    assert type(value) is type(expected)


def test_defaults_are_made_anew_for_every_object() -> None:
    first, second = CODEC.decode([stored("Report", title="a"), stored("Report", title="b")])
    assert first.tags is not second.tags


def test_a_private_attribute_that_is_new_since_is_filled() -> None:
    assert CODEC.decode(stored("Model", title="a"))._cache == {}


@pytest.mark.parametrize("name", ["Report", "Point", "Model", "Thing", "Pair"])
def test_a_field_that_no_longer_exists_is_an_error_and_not_a_loss(name: str) -> None:
    with pytest.raises(
        NotLoadableError, match=rf"^state\.r: {name} was stored with a field 'gone' that it no longer has"
    ):
        CODEC.decode({"r": stored(name, gone=1)})


@pytest.mark.parametrize(
    ("name", "needed"), [("Report", "title"), ("Point", "x"), ("Model", "title"), ("Pair", "left")]
)
def test_a_new_field_without_a_default_is_an_error(name: str, needed: str) -> None:
    with pytest.raises(
        NotLoadableError, match=rf"{name} was stored without its field '{needed}'. Give the field a default"
    ):
        CODEC.decode([stored(name)])


def test_a_type_that_is_not_declared_is_named_with_its_path_and_what_to_do() -> None:
    tree = Codec([Report]).encode({"all": [Report("a")]})
    with pytest.raises(NotLoadableError, match=r"^state\.all\[0\]: was stored as 'Report', a type that .*rt\.register"):
        Codec().decode(tree)


def test_a_type_that_was_renamed_is_an_error_that_says_so() -> None:
    with pytest.raises(NotLoadableError, match="if it was renamed, go back to the old name"):
        CODEC.decode(stored("Before", x=1))


def test_a_member_that_an_enum_no_longer_has_is_an_error() -> None:
    with pytest.raises(NotLoadableError, match=r"^state\.c: Colour no longer has the member 'GREEN'"):
        CODEC.decode({"c": {"$": "enum", "type": "Colour", "v": "GREEN"}})
    with pytest.raises(NotLoadableError, match="Right no longer has all the flags in 6"):
        CODEC.decode({"$": "flag", "type": "Right", "v": 6})


def test_extra_and_private_attributes_that_a_model_no_longer_has_are_errors() -> None:
    tree: Any = stored("Model", title="a")
    with pytest.raises(NotLoadableError, match="stored with an extra field 'more', which it no longer allows"):
        CODEC.decode({**tree, "extra": {"more": 1}})
    with pytest.raises(NotLoadableError, match="private attribute '_gone' that it no longer has"):
        CODEC.decode({**tree, "private": {"_gone": 1}})


def test_a_type_that_became_another_kind_of_type_is_an_error() -> None:
    with pytest.raises(
        NotLoadableError, match="was stored as Report when that was of the kind 'enum'; now it is 'object'"
    ):
        CODEC.decode({"$": "enum", "type": "Report", "v": "RED"})


def test_a_default_that_fails_is_an_error_with_its_path() -> None:
    def fail() -> int:
        raise OSError("no such thing")

    broken = make_dataclass("Broken", [("x", int, field(default_factory=fail))])
    with pytest.raises(NotLoadableError, match=r"^state\[0\]: cannot be built again: OSError\('no such thing'\)"):
        Codec([broken]).decode([stored("Broken")])


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "antigravity", "builtins.eval", "__main__"])
def test_nothing_that_the_data_names_is_imported_or_called(name: str) -> None:
    before = set(sys.modules)
    for kind in ("object", "enum", "kind", "flag", name):
        with pytest.raises(NotLoadableError):
            CODEC.decode({"$": kind, "type": name, "v": {}})
    assert set(sys.modules) == before


DAMAGED = """
{"$": null}  {"$": 1}  {"$": []}  {"$": "nothing"}
{"$": "tuple"}  {"$": "tuple", "v": {}}  {"$": "tuple", "v": [], "w": 1}
{"$": "dict", "v": [[1]]}  {"$": "dict", "v": [1]}  {"$": "dict", "v": [[[], 1]]}
{"$": "dict", "v": [[1, 1], [1, 2]]}  {"$": "dict", "v": [[1, 1], [true, 2]]}
{"$": "set", "v": [1, 1]}  {"$": "set", "v": [[]]}  {"$": "frozenset", "v": "ab"}
{"$": "int", "v": "x"}  {"$": "int", "v": 1}  {"$": "int"}
{"$": "float", "v": "one"}  {"$": "float", "v": "nan:zz"}  {"$": "float", "v": 1.5}
{"$": "bytes", "v": "*"}  {"$": "bytes", "v": "é"}  {"$": "str", "v": "/w=="}  {"$": "str", "v": null}
{"$": "date", "v": "2024-13-01"}  {"$": "datetime", "v": 1}  {"$": "datetime", "v": "2024-01-01", "fold": 2}
{"$": "datetime", "v": "2024-01-01", "zone": "../../etc/passwd"}
{"$": "datetime", "v": "2024-01-01", "zone": "/etc/passwd"}
{"$": "datetime", "v": "2024-01-01", "zone": "No/Where"}
{"$": "datetime", "v": "2024-01-01", "zone": "Europe"}
{"$": "datetime", "v": "2024-01-01", "zone": {}}
{"$": "datetime", "v": "2024-01-01", "offset": [1, 0, 0]}
{"$": "time", "v": "25:00"}  {"$": "timedelta", "v": [1]}  {"$": "timedelta", "v": [10000000000, 0, 0]}
{"$": "Decimal", "v": "x"}  {"$": "UUID", "v": "x"}
{"$": "UUID", "v": "00000000000000000000000000000000", "safe": "x"}
{"$": "WindowsPath", "v": "x"}  {"$": "PosixPath"}
{"$": "object"}  {"$": "object", "type": 1}  {"$": "object", "type": "Report"}
{"$": "object", "type": "Report", "v": []}  {"$": "object", "type": "Report", "v": {}, "x": 1}
{"$": "object", "type": "Report", "v": {"$": "dict", "v": [[1, 2]]}}
{"$": "object", "type": "Model", "v": {"title": "a"}, "set": 1}
{"$": "object", "type": "Model", "v": {"title": "a"}, "set": [[]]}
{"$": "object", "type": "Model", "v": {"title": "a"}, "private": 1}
{"$": "enum", "type": "Colour"}  {"$": "enum", "type": "Colour", "v": ["RED"]}
{"$": "flag", "type": "Right", "v": true}  {"$": "kind", "type": "Tags", "v": 1}
{"$": "kind", "type": "Tags", "v": "abc"}
"""


@pytest.mark.parametrize("written", re.split(r"  |\n", DAMAGED.strip()))
def test_a_damaged_mark_is_an_error_with_its_path(written: str) -> None:
    with pytest.raises(NotLoadableError, match=r"^state\.a\[1\]"):
        CODEC.decode({"a": [0, loads(written.encode())]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nul",
        b"NaN",
        b"1e999",
        b"\xff",
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b"[1] 2",
        b"1" * 5000,
        b"\x80\x04N.",
    ],
    ids=repr,
)
def test_what_is_not_json_is_an_error(data: bytes) -> None:
    with pytest.raises(NotLoadableError, match="is not JSON that can be read"):
        loads(data)


@pytest.mark.parametrize("levels", [401, 600, 100_000])
@pytest.mark.parametrize("inside", [b"1", b'{"$":"tuple","v":[]}'])
def test_hostile_nesting_is_an_error(levels: int, inside: bytes) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        with pytest.raises(NotLoadableError):
            CODEC.decode(loads(opening * levels + inside + closing * levels))


names = st.sampled_from(
    ["$", "v", "type", "extra", "private", "set", "zone", "offset", "name", "fold", "safe", "title", "x"]
)
marks = st.sampled_from([*scalars.BUILD, "tuple", "set", "frozenset", "dict", "object", "enum", "flag", "kind"])
declared = st.sampled_from(["Colour", "Right", "Report", "Point", "Model", "Thing", "Pair", "Tags", "RED"])
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
    | marks | declared | st.sampled_from(["2024-01-01", "12:00", "1E5", "nan", "0xff", "AAAA", "Europe/Berlin"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(names | st.text(max_size=5), inner, max_size=4)
    | st.fixed_dictionaries({"$": marks, "v": inner})
    | st.fixed_dictionaries({"$": marks, "type": declared, "v": inner})
    | st.fixed_dictionaries({"$": marks, "v": st.lists(st.lists(inner, min_size=2, max_size=2), max_size=3)}),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(json)
@example({"$": "enum", "type": "Colour", "v": {"$": "int", "v": "0x1" + "0" * 9999}})
@example({"$": "object", "type": "Pair", "v": {"left": [], "right": {"$": "set", "v": []}}})
def test_any_json_is_loaded_or_is_a_clear_error(tree: Any) -> None:
    try:
        value = CODEC.decode(loads(dumps(tree)))
    except NotLoadableError:
        return
    assert exactly(CODEC.decode(CODEC.encode(value))) == exactly(value)


@settings(max_examples=300, deadline=None)
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_loaded_or_are_a_clear_error(data: bytes) -> None:
    try:
        value = CODEC.decode(loads(data))
    except NotLoadableError:
        return
    assert exactly(CODEC.decode(CODEC.encode(value))) == exactly(value)
