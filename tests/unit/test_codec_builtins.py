"""Builtin values come back exactly as they were, through JSON that a person can read."""

from __future__ import annotations

import math
import struct
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactly import exactly
from holdfast.core.codec import Codec, canonical, dumps, loads, may_hold_marks

BERLIN = ZoneInfo("Europe/Berlin")
NAN_WITH_A_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000000007"))[0]


def there_and_back(value: Any) -> Any:
    codec = Codec()
    return codec.decode(loads(dumps(codec.encode(value))))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="None"),
        pytest.param([True, 1, 1.0, "1", False, 0, 0.0, -0.0, ""], id="what equals something of another type"),
        pytest.param([2**53 + 1, 2**63 - 1, -(2**63)], id="ints that a double does not have"),
        pytest.param([2**63, 2**64, -(2**63) - 1, -(2**200)], id="ints beyond 64 bits"),
        pytest.param(10**4999 + 7, id="an int of 5,000 digits"),
        pytest.param([math.nan, math.inf, -math.inf, NAN_WITH_A_PAYLOAD], id="NaN and the infinities"),
        pytest.param([5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e16, 1e22], id="floats at the edges"),
        pytest.param('\x00 and \x1f, " and \\, é, 漢, 🙂, \u2028', id="strings with all kinds of characters"),
        pytest.param(["\ud800", "a\udfffb", "\ud83d\ude42", {"\ud800": 1}], id="lone surrogates"),
        pytest.param([b"", b"\x00\xff", bytes(range(256))], id="bytes"),
        pytest.param([(), (1,), ((), [(2,)])], id="tuples"),
        pytest.param([set(), {1, "1", None, (2,), b"3"}, frozenset({frozenset({1}), frozenset()})], id="sets"),
        pytest.param({1: "int", "1": "str", None: "None", 1.5: "float", (1,): "tuple"}, id="keys of many types"),
        pytest.param({True: "a"}, id="a bool as a key stays a bool"),
        pytest.param({1.0: "a"}, id="a float as a key stays a float"),
        pytest.param({"z": 1, "a": 2, "m": {"y": 1, "b": 2}}, id="keys keep their order"),
        pytest.param({2: 1, 1: 2, 3: {9: 1, 8: 2}}, id="other keys keep their order too"),
        pytest.param({math.nan: 1, frozenset({1}): 2, date(2024, 1, 1): 3, b"k": 4}, id="any hashable key"),
        pytest.param(datetime(2024, 2, 29, 23, 59, 59, 999999), id="a naive datetime"),
        pytest.param(datetime(2024, 1, 1, tzinfo=UTC), id="a datetime in UTC"),
        pytest.param(datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30))), id="a fixed offset"),
        pytest.param(datetime(2024, 1, 1, tzinfo=timezone(timedelta(microseconds=1))), id="an odd offset"),
        pytest.param(datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")), id="a named offset"),
        pytest.param(datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "\ud800")), id="a strangely named offset"),
        pytest.param(datetime(2024, 7, 1, 12, tzinfo=BERLIN), id="a time zone"),
        pytest.param(
            [datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=f) for f in (0, 1)], id="both 2:30 of a change"
        ),
        pytest.param(datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN), id="a time that never was"),
        pytest.param(datetime(2024, 1, 1, fold=1), id="fold without a zone"),
        pytest.param([datetime.min, datetime.max, date.min, date.max, time.min, time.max], id="the first and the last"),
        pytest.param([time(1, 2, 3, 4), time(1, tzinfo=UTC), time(1, tzinfo=BERLIN, fold=1)], id="times of day"),
        pytest.param([timedelta(0), timedelta(-1, 1, 1), timedelta.max, timedelta.min], id="timedeltas"),
        pytest.param([Decimal(s) for s in ("0", "-0", "1.10", "1E+400", "NaN", "-sNaN12", "-Infinity")], id="decimals"),
        pytest.param([uuid.UUID(int=0), uuid.UUID(int=7, is_safe=uuid.SafeUUID.safe)], id="UUIDs"),
        pytest.param([Path("a/../b"), PurePosixPath("/x"), PureWindowsPath(r"C:\x"), PosixPath("\udc80")], id="paths"),
    ],
)
def test_a_value_comes_back_exactly(value: Any) -> None:
    assert exactly(there_and_back(value)) == exactly(value)


def test_utc_comes_back_as_utc_itself() -> None:
    assert there_and_back(datetime(2024, 1, 1, tzinfo=UTC)).tzinfo is UTC
    assert there_and_back(datetime(2024, 1, 1, tzinfo=BERLIN)).tzinfo is BERLIN


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"$": "tuple", "v": [1, 2]}, id="a mark of ours"),
        pytest.param({"$": "object", "type": "os.system", "v": {}}, id="an object mark"),
        pytest.param({"$": "dict", "v": [["a", 1]]}, id="the mark of such data"),
        pytest.param({"a": [{"$": {"$": "$"}}]}, id="marks inside marks"),
        pytest.param({"lc": 2, "type": "constructor", "id": ["os", "system"]}, id="another project's mark"),
        pytest.param({"__reduce__": ["os.system", ["true"]], "py/object": "os.system"}, id="yet others"),
        pytest.param({"type": "Report", "v": {}}, id="half a mark"),
    ],
)
def test_data_that_looks_like_a_mark_comes_back_as_the_data_it_was(data: Any) -> None:
    assert exactly(there_and_back(data)) == exactly(data)
    codec = Codec()
    assert exactly(codec.decode(codec.encode(codec.encode(data)))) == exactly(codec.encode(data))


def test_what_is_on_disk_can_be_read() -> None:
    codec = Codec()
    state = {"who": ("a", 1), "at": datetime(2024, 1, 1, 12, tzinfo=BERLIN), 7: b"\x00", "n": 2**64, "tags": {"b", "a"}}
    assert dumps(codec.encode(state)).decode() == (
        '{"$":"dict","v":[["who",{"$":"tuple","v":["a",1]}],'
        '["at",{"$":"datetime","v":"2024-01-01T12:00:00","zone":"Europe/Berlin"}],'
        '[7,{"$":"bytes","v":"AA=="}],["n",{"$":"int","v":"0x10000000000000000"}],'
        '["tags",{"$":"set","v":["a","b"]}]]}'
    )


def test_a_plain_state_is_stored_as_it_is() -> None:
    state = {"messages": [{"role": "user", "content": "hé"}], "n": 1, "x": 0.5, "ok": True, "none": None}
    assert Codec().encode(state) == state


def test_a_set_is_stored_in_the_same_order_whatever_order_it_was_filled_in() -> None:
    words = [f"w{n}" for n in range(50)]
    backwards = words[::-1]
    assert dumps(Codec().encode(set(words))) == dumps(Codec().encode(set(backwards)))


def test_a_list_that_is_there_twice_comes_back_as_two_equal_lists() -> None:
    shared = [1]
    first, second = there_and_back([shared, shared])
    assert first == second == [1]
    assert first is not second


def test_canonical_bytes_do_not_depend_on_the_order_of_keys_but_on_types() -> None:
    assert canonical({"a": 1, "b": {"c": 1, "d": 2}}) == canonical({"b": {"d": 2, "c": 1}, "a": 1})
    assert len({canonical(tree) for tree in (1, 1.0, True, "1", -0.0, 0.0)}) == 6


def test_a_string_of_100_mb_is_stored() -> None:
    state = {"text": "x" * 100_000_000}
    back = there_and_back(state)
    assert back["text"] == state["text"]


def test_a_million_keys_are_stored() -> None:
    state = dict.fromkeys(map(str, range(1_000_000)), 0)
    assert there_and_back(state) == state


def test_bytes_tell_whether_a_tree_may_hold_marks() -> None:
    codec = Codec()
    assert not may_hold_marks(dumps(codec.encode({"a": [1, "b", {"c": None}]})))
    assert may_hold_marks(dumps(codec.encode({"a": [(1,)]})))
    assert may_hold_marks(dumps(codec.encode({"$": 1})))
    assert may_hold_marks(dumps(codec.encode({"a": {1: 1}})))


@pytest.mark.parametrize("plain", [True, False])
def test_a_decoded_value_has_containers_of_its_own(plain: bool) -> None:
    codec = Codec()
    tree = codec.encode({"a": [{"b": [1]}], "c": {}})
    before = dumps(tree)
    value = codec.decode(tree, plain=plain)
    value["a"][0]["b"].append(2)
    value["a"].append(3)
    value["c"]["d"] = 4
    assert dumps(tree) == before


def test_a_tree_has_containers_of_its_own() -> None:
    state = {"a": [{"b": [1]}], "c": {1: [2]}, "d": ([3],)}
    tree = Codec().encode(state)
    before = dumps(tree)
    state["a"][0]["b"].append(2)  # type: ignore[index]
    state["c"][1].append(3)  # type: ignore[index]
    state["d"][0].append(4)  # type: ignore[index]
    state["e"] = []
    assert dumps(tree) == before


any_text = st.text(st.characters(exclude_categories=[]), max_size=8)
zones = st.none() | st.timezones() | st.builds(timezone, st.timedeltas(-timedelta(hours=23), timedelta(hours=23)))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | any_text
    | st.sampled_from(["$", "v", "type", "tuple", "dict"])
    | st.binary(max_size=8)
    | st.datetimes(timezones=zones, allow_imaginary=True)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.builds(PurePosixPath, any_text.filter(lambda text: "\0" not in text))
)
# A signalling NaN cannot be hashed.
hashables = st.recursive(
    scalars.filter(lambda value: not isinstance(value, Decimal) or not value.is_snan()),
    lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(any_text | st.sampled_from(["$", "v"]), inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.sets(hashables, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=250, deadline=None)
@given(values)
def test_any_value_comes_back_exactly(value: Any) -> None:
    assert exactly(there_and_back(value)) == exactly(value)


@settings(max_examples=250, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_keeps_its_bits(value: float) -> None:
    assert struct.pack("d", there_and_back(value)) == struct.pack("d", value)
