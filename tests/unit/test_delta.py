"""A change is found exactly, written so that a person can read it, and done again exactly."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactly import exactly
from holdfast.core.codec import MAX_DEPTH, Codec, dumps, loads
from holdfast.core.delta import DeltaError, apply, diff


def replay(old: Any, new: Any) -> Any:
    """What `old` becomes by the change to `new`, after that has been on disk."""
    return apply(copy.deepcopy(old), loads(dumps(diff(old, new))))


@pytest.mark.parametrize(
    ("old", "new", "ops"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="nothing changed"),
        pytest.param({"a": 1, "b": 2}, {"a": 1, "b": 3}, [["set", ["b"], 3]], id="a value"),
        pytest.param(
            {"a": {"b": [0, {"c": 1}]}}, {"a": {"b": [0, {"c": 2}]}}, [["set", ["a", "b", 1, "c"], 2]], id="deep down"
        ),
        pytest.param({"a": 1}, {"a": 1, "b": [2]}, [["set", ["b"], [2]]], id="a new key"),
        pytest.param({"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3}, [["del", ["b"]]], id="a key gone"),
        pytest.param(
            {"a": 1, "b": 2, "c": 3},
            {"a": 1, "c": 3, "b": 2},
            [["set", [], {"a": 1, "c": 3, "b": 2}]],
            id="another order",
        ),
        pytest.param(
            {"x": {"a": 1, "b": 2}},
            {"x": {"b": 2, "a": 1}},
            [["set", ["x"], {"b": 2, "a": 1}]],
            id="another order inside",
        ),
        pytest.param({"m": [1, 2]}, {"m": [1, 2, 3, 4]}, [["append", ["m"], [3, 4]]], id="items at the end"),
        pytest.param([1, 2, 3, 4], [1, 4], [["splice", [], 1, 2, []]], id="items gone"),
        pytest.param([1, 4], [1, 2, 3, 4], [["splice", [], 1, 0, [2, 3]]], id="items put in"),
        pytest.param([1, 2, 3], [1, 9, 3], [["set", [1], 9]], id="an item"),
        pytest.param([1, 2, 3, 4], [1, 8, 9, 4], [["splice", [], 1, 2, [8, 9]]], id="several items"),
        pytest.param(
            [1, 2, 3, 4], [2, 3, 4, 5], [["splice", [], 0, 1, []], ["append", [], [5]]], id="a window that moves on"
        ),
        pytest.param(
            ["system", 1, 2, 3],
            ["system", 3, 4],
            [["splice", [], 1, 2, []], ["append", [], [4]]],
            id="a window behind a fixed item",
        ),
        pytest.param({"t": "x" * 20}, {"t": "x" * 20 + "more"}, [["append", ["t"], "more"]], id="text that grows"),
        pytest.param({"t": "short"}, {"t": "shorter"}, [["set", ["t"], "shorter"]], id="text too short to append to"),
        pytest.param(
            [{"c": "x" * 20}],
            [{"c": "x" * 20 + "!"}, {"c": "n"}],
            [["append", [0, "c"], "!"], ["append", [], [{"c": "n"}]]],
            id="the last one grows and another comes",
        ),
        pytest.param({"a": 1, "b": 2}, {"a": 3, "b": 4}, [["set", [], {"a": 3, "b": 4}]], id="everything"),
        pytest.param({"x": {"a": 1, "b": 2}}, {"x": {"c": 1}}, [["set", ["x"], {"c": 1}]], id="everything inside"),
        pytest.param({"a": 1}, [1], [["set", [], [1]]], id="the whole"),
        pytest.param([1], None, [["set", [], None]], id="to nothing"),
        pytest.param({"a": 1}, {"a": True}, [["set", ["a"], True]], id="an int to a bool"),
        pytest.param({"a": 0.0}, {"a": -0.0}, [["set", ["a"], -0.0]], id="a sign"),
        pytest.param(
            [{"a": 1, "b": 2}], [{"b": 2, "a": 1}], [["set", [0], {"b": 2, "a": 1}]], id="an item in another order"
        ),
    ],
)
def test_a_change_reads_like_what_was_done(old: Any, new: Any, ops: list[Any]) -> None:
    assert exactly(diff(old, new)) == exactly(ops)
    assert exactly(replay(old, new)) == exactly(new)


def test_what_is_the_same_object_is_passed_over() -> None:
    class Untouchable(list[Any]):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("it was looked into")

        __hash__ = None  # type: ignore[assignment]

    same = Untouchable([1])
    assert diff({"a": same, "b": [same, 1]}, {"a": same, "b": [same, 2]}) == [["set", ["b", 1], 2]]


def test_equal_parts_that_are_not_the_same_object_are_no_change() -> None:
    old = {"a": [{"b": [1, 2]}, "text"], "c": {"d": 1.5}}
    assert diff(old, copy.deepcopy(old)) == []


def test_a_conversation_that_grows_costs_what_is_added() -> None:
    codec = Codec()
    tree = codec.encode({"messages": [{"role": "user", "content": "x" * 500}] * 200})
    value = codec.decode(tree)
    value["messages"].append({"role": "assistant", "content": "hello"})
    assert len(dumps(diff(tree, codec.encode(value, like=tree)))) < 100


def test_a_window_over_a_conversation_costs_what_is_added() -> None:
    codec = Codec()
    tree = codec.encode({"messages": [{"n": n, "content": "x" * 500} for n in range(50)]})
    value = codec.decode(tree)
    value["messages"] = [*value["messages"][7:], {"n": 50, "content": "new"}]
    assert len(dumps(diff(tree, codec.encode(value, like=tree)))) < 120


def test_the_place_of_the_operations_in_the_tree_is_that_of_the_new_tree() -> None:
    old = {"a": [1, {"b": {"c": [1, 2, 3]}}], "gone": 1, "t": "y" * 30}
    new = {"a": [0, 1, {"b": {"c": [1, 3, 4], "d": None}}], "t": "y" * 31, "new": {"$": "tuple", "v": []}}
    assert exactly(replay(old, new)) == exactly(new)


def test_apply_changes_the_tree_in_place() -> None:
    tree: Any = {"m": [1]}
    assert apply(tree, [["append", ["m"], [2]]]) is tree
    assert tree == {"m": [1, 2]}


MISFITS = """
null  1  "set"  {}  [1]  ["set"]  [[]]  [["set"]]  [["set", []]]  [["set", [], 1, 2]]  [["jump", [], 1]]
[[1, [], 1]]  [[["set"], [], 1]]  [["set", "a", 1]]  [["set", {}, 1]]  [["set", ["x", "y"], 1]]
[["set", [0], 1]]  [["set", ["l", 3], 1]]  [["set", ["l", -1], 1]]  [["set", ["l", true], 1]]
[["set", ["l", "a"], 1]]  [["set", ["l", 1.0], 1]]  [["set", [null], 1]]  [["set", ["t", 0], 1]]
[["del", []]]  [["del", ["x"]]]  [["del", ["l", 0]]]  [["del", [[]]]]  [["del", ["n", "x"]]]
[["append", ["l"], "x"]]  [["append", ["t"], []]]  [["append", ["n"], 1]]  [["append", ["x"], []]]
[["append", [], {}]]  [["splice", ["l"], 0, 1]]  [["splice", ["l"], -1, 1, []]]  [["splice", ["l"], 0, 4, []]]
[["splice", ["l"], 0, -1, []]]  [["splice", ["l"], "0", 1, []]]  [["splice", ["l"], 0, true, []]]
[["splice", ["l"], 0, 1, "x"]]  [["splice", ["t"], 0, 1, []]]
[["splice", ["l"], 1000000000000000, 1000000000000000, []]]  [["set", ["n"], 1], ["set", ["n", "x"], 1]]
"""


@pytest.mark.parametrize("written", re.split(r"  |\n", MISFITS.strip()))
def test_an_operation_that_does_not_fit_is_an_error(written: str) -> None:
    with pytest.raises(DeltaError):
        apply({"l": [1, 2, 3], "t": "text", "n": None}, loads(written.encode()))


def test_a_change_below_the_deepest_level_needs_no_stack() -> None:
    codec = Codec()
    old: Any = "old"
    new: Any = "new"
    for _ in range(MAX_DEPTH // 2):
        old, new = [{"a": old}], [{"a": new}]
    tree = codec.encode(old)
    ops = diff(tree, codec.encode(new, like=tree))
    assert len(ops[0][1]) < 100
    assert codec.decode(apply(tree, loads(dumps(ops)))) == new


def test_a_change_at_every_level_is_found_in_good_time() -> None:
    old: Any = [0]
    new: Any = [1]
    for level in range(150):
        old, new = [old, level, {"a": old if level < 8 else level}], [[level], new, {"a": level}]
    assert exactly(replay(old, new)) == exactly(new)


keys = st.sampled_from(["a", "b", "c", "$", "v", ""])
leaves = st.sampled_from([None, True, False, 0, 1, 0.0, -0.0, 1.0, 2**63, "", "a", "x" * 20, "x" * 20 + "y", "é"])
trees = st.recursive(
    leaves | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=25,
)


@settings(max_examples=500, deadline=None)
@given(trees, trees)
def test_any_change_is_done_again_exactly(old: Any, new: Any) -> None:
    before = exactly(old), exactly(new)
    assert exactly(replay(old, new)) == exactly(new)
    assert (exactly(old), exactly(new)) == before


@settings(max_examples=400, deadline=None)
@given(st.lists(leaves | st.dictionaries(keys, leaves, max_size=2), max_size=8), st.data())
def test_any_cutting_and_filling_of_a_list_is_done_again_exactly(old: list[Any], data: st.DataObject) -> None:
    new = copy.deepcopy(old)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(new)))
        new[at : at + data.draw(st.integers(0, 3))] = data.draw(st.lists(leaves, max_size=2))
    assert exactly(replay({"l": old}, {"l": new})) == exactly({"l": new})


@settings(max_examples=200, deadline=None)
@given(
    trees, st.lists(st.tuples(st.sampled_from(["set", "del", "append", "splice"]), trees, trees) | trees, max_size=3)
)
def test_any_operations_are_done_or_are_a_clear_error(tree: Any, ops: list[Any]) -> None:
    try:
        result = apply(tree, loads(dumps(ops)))
    except DeltaError:
        return
    assert exactly(loads(dumps(result))) == exactly(result)
