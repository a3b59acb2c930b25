"""A tree made from an earlier one keeps exactly what did not change, as the very same objects."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactly import exactly
from holdfast.core.codec import Codec, dumps, loads
from holdfast.errors import NotStorableError


@dataclass
class Message:
    role: str
    content: str
    parts: list[Any] = field(default_factory=list)


class Liar:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


CODEC = Codec([Message])


def state() -> dict[str, Any]:
    return {
        "messages": [{"id": f"m{n}", "role": "user", "at": n + 0.5, "tags": ["a", f"b{n}"]} for n in range(20)],
        "objects": [Message("user", f"c{n}", [n]) for n in range(5)],
        "pairs": {1: ["one"], (2,): {"two"}},
        "when": datetime(2024, 1, 1, tzinfo=UTC),
        "big": [2**70, b"x", "\ud800", float("nan")],
        "n": 1,
        "empty": [{}, [], (), set()],
    }


def test_an_unchanged_copy_is_the_earlier_tree_itself() -> None:
    tree = loads(dumps(CODEC.encode(state())))
    assert CODEC.encode(CODEC.decode(tree), like=tree) is tree


def test_a_rebuilt_but_equal_value_is_the_earlier_tree_itself() -> None:
    tree = loads(dumps(CODEC.encode(state())))
    assert CODEC.encode(state(), like=tree) is tree


def change_a_leaf(value: Any) -> None:
    value["messages"][7]["tags"][1] = "changed"


def append_a_message(value: Any) -> None:
    value["messages"].append({"id": "new"})


def move_the_window(value: Any) -> None:
    del value["messages"][:3]
    value["messages"].append({"id": "new"})


def put_one_in(value: Any) -> None:
    value["messages"].insert(4, {"id": "new"})


def take_one_out(value: Any) -> None:
    del value["messages"][4]


@pytest.mark.parametrize("change", [change_a_leaf, append_a_message, move_the_window, put_one_in, take_one_out])
def test_everything_beside_a_change_is_kept(change: Any) -> None:
    tree: Any = loads(dumps(CODEC.encode(state())))
    value = CODEC.decode(tree)
    change(value)
    new: Any = CODEC.encode(value, like=tree)
    assert exactly(CODEC.decode(new)) == exactly(value)
    assert all(new[key] is tree[key] for key in tree if key != "messages")
    old_ids = {id(message) for message in tree["messages"]}
    assert sum(id(message) not in old_ids for message in new["messages"]) <= 1


def test_only_the_changed_object_is_new() -> None:
    tree: Any = CODEC.encode(state())
    value = CODEC.decode(tree)
    value["objects"][2].content = "other"
    new: Any = CODEC.encode(value, like=tree)
    assert [a is b for a, b in zip(new["objects"], tree["objects"], strict=True)] == [True, True, False, True, True]
    assert new["objects"][2]["v"]["parts"] is tree["objects"][2]["v"]["parts"]


def test_a_moved_window_of_objects_is_exact_too() -> None:
    tree = CODEC.encode(state())
    value = CODEC.decode(tree)
    value["objects"] = [*value["objects"][2:], Message("assistant", "new")]
    assert exactly(CODEC.decode(CODEC.encode(value, like=tree))) == exactly(value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (1, True), (True, 1), (1, 1.0), (0.0, -0.0), (-0.0, 0.0), (0, False), ("1", 1), (2**70, float(2**70)),
        ([], ()), ((), []), ([], {}), ({}, []), ({1}, frozenset({1})), ([[1]], [[True]]), ({"a": [0]}, {"a": [0.0]}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1: 1}, {True: 1}), ({1: 1}, {1.0: 1}), ({1: 1}, {"1": 1}),
        ((1, 2), {"$": "tuple", "v": [1, 2]}), ({"$": "tuple", "v": [1, 2]}, (1, 2)),
        ({1: 2}, {"$": "dict", "v": [[1, 2]]}), (b"a", {"$": "bytes", "v": "YQ=="}), (b"a", "YQ=="),
        (Message("a", "b"), {"$": "object", "type": "Message", "v": {"role": "a", "content": "b", "parts": []}}),
        (datetime(2024, 1, 1), datetime(2024, 1, 1, fold=1)), (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1)),
        (None, "None"), ([None], []), ([], [None]), ({"a": None}, {}), ({}, {"a": None}), ({(): 1}, {(): 1, "a": 1}),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_equal_but_not_the_same_is_a_change(old: Any, new: Any) -> None:
    for wrap in (lambda x: x, lambda x: [x], lambda x: {"k": x}, lambda x: (x, 1), lambda x: {1: x}):
        tree = CODEC.encode(wrap(old))
        got = CODEC.encode(wrap(new), like=tree)
        assert got is not tree
        assert exactly(CODEC.decode(got)) == exactly(wrap(new))


def test_an_object_that_equals_everything_fools_nobody() -> None:
    tree = CODEC.encode({"a": [1, "x"], "b": {"c": None}})
    for lie in (
        {"a": [1, Liar()], "b": {"c": None}},
        {"a": [1, "x"], "b": {"c": Liar()}},
        {"a": Liar(), "b": {"c": None}},
    ):
        with pytest.raises(Exception, match="Liar cannot be stored"):
            CODEC.encode(lie, like=tree)


def test_a_state_that_is_changed_after_it_was_encoded_changes_no_tree() -> None:
    value = state()
    first = CODEC.encode(value)
    second = CODEC.encode(value, like=first)
    written = dumps(second)
    value["messages"][0]["tags"].append("later")
    value["objects"][0].parts.append("later")
    value["pairs"][1].append("later")
    value["empty"][1].append("later")
    assert dumps(second) == written
    assert dumps(first) == written


def test_a_change_at_every_level_costs_no_more_than_one_walk() -> None:
    old: Any = [0]
    new: Any = [1]
    for level in range(150):
        old, new = [old, level, level + 1], [[level + 1], new, level]
    tree = CODEC.encode(old)
    assert CODEC.decode(CODEC.encode(new, like=tree)) == new


leaves = st.sampled_from(
    [0, 1, True, False, None, 0.0, -0.0, 1.0, "", "a", "$", "v", b"a", 2**70, "tuple", "é", "\ud800"]
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", "$", "v", "é"]), inner, max_size=3)
        | st.dictionaries(st.sampled_from([1, True, None, "a", (1,), 0.0]), inner, max_size=3)
        | st.builds(Message, leaves, leaves, st.lists(inner, max_size=2))
        | st.sets(leaves, max_size=3)
    ),
    max_leaves=15,
)


@settings(max_examples=300, deadline=None)
@given(values, values)
def test_an_earlier_tree_never_changes_what_is_stored(old: Any, new: Any) -> None:
    tree = CODEC.encode(old)
    before = dumps(tree)
    assert dumps(CODEC.encode(new, like=tree)) == dumps(CODEC.encode(new))
    assert CODEC.encode(copy.deepcopy(old), like=tree) is tree
    assert dumps(tree) == before


@settings(max_examples=200, deadline=None)
@given(values, st.lists(values, min_size=1, max_size=4), st.integers(0, 9), st.integers(0, 3))
def test_lists_that_were_cut_and_filled_are_stored_exactly(first: Any, items: list[Any], at: int, cut: int) -> None:
    old = [first, *items, first, *items]
    tree = CODEC.encode(old)
    value = CODEC.decode(tree)
    value[at : at + cut] = [first]
    assert dumps(CODEC.encode(value, like=tree)) == dumps(CODEC.encode(value))


class _Role(StrEnum):
    USER = "user"


class _Tags(list):  # type: ignore[type-arg]
    pass


def _long(item: Any) -> dict[str, Any]:
    return {"items": [*({"n": n, "role": "user", "tags": ["a"]} for n in range(40)), item]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ((1,), {"$": "tuple", "v": [1]}),
        ([1], (1,)),
        ({"a": 1, "b": 1}, {"b": 1, "a": 1}),
        ("1", 1),
        (None, False),
        (float("nan"), None),
    ],
)
def test_in_a_long_list_only_what_is_exactly_the_same_is_kept(before: Any, after: Any) -> None:
    codec = Codec()
    old = codec.encode(_long(before))
    for _ in range(2):  # the second time the list is known by its bytes
        state = codec.decode(old)
        assert codec.encode(state, like=old) is old
    state["items"][-1] = after
    tree = codec.encode(state, like=old)
    assert exactly(codec.decode(tree)) == exactly(_long(after))


@pytest.mark.parametrize("place", ["role", "tags"])
def test_in_a_long_list_an_equal_value_of_another_type_is_not_taken_for_the_old_one(place: str) -> None:
    codec = Codec()
    old = codec.encode(_long("x"))
    for _ in range(2):
        state = codec.decode(old)
        assert codec.encode(state, like=old) is old
    state["items"][7][place] = _Role.USER if place == "role" else _Tags(["a"])
    with pytest.raises(NotStorableError, match=rf"state\.items\[7\]\.{place}: "):
        codec.encode(state, like=old)


def test_a_long_list_that_holds_itself_is_refused() -> None:
    codec = Codec()
    old = codec.encode(_long("x"))
    state = codec.decode(old)
    state["items"][3]["tags"] = state["items"]
    with pytest.raises(NotStorableError, match="refers to itself"):
        codec.encode(state, like=old)


@pytest.mark.parametrize("count", [3, 40])
def test_data_that_looks_like_the_mark_of_what_it_replaces_is_not_taken_for_it(count: int) -> None:
    codec = Codec()
    old = codec.encode([[(1, 2)] for _ in range(count)])
    lookalike = [[{"$": "tuple", "v": [1, 2]}] for _ in range(count)]
    assert codec.decode(codec.encode(lookalike, like=old)) == lookalike
