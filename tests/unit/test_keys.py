"""The keys of calls and the names of branches: told apart, and the same in every attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.keys import Names, branch_name, digest

NAMES = st.text(st.sampled_from("ab:=/%(.1)?"), min_size=1, max_size=4)


@given(st.lists(st.tuples(NAMES, st.none() | NAMES), max_size=12))
def test_no_two_calls_of_one_scope_have_one_key(calls: list[tuple[str, str | None]]) -> None:
    names, given_out = Names(), []
    for name, chosen in calls:
        key = names.key(name, chosen)
        if key is None:
            assert chosen is not None
            assert (name, chosen) in [(n, c) for n, c, _ in given_out]
        else:
            given_out.append((name, chosen, key))
    keys = [key for _, _, key in given_out]
    assert len(set(keys)) == len(keys)
    assert not any("/" in key for key in keys)


@given(st.lists(st.tuples(NAMES, st.none() | NAMES), max_size=8), st.lists(st.tuples(NAMES, NAMES), max_size=8))
def test_no_branch_has_the_name_of_a_call(calls: list[tuple[str, str | None]], branches: list[tuple[str, str]]) -> None:
    names = Names()
    keys = {names.key(name, chosen) for name, chosen in calls}
    firsts = {branch_name(name, chosen, None) for name, chosen in branches}
    firsts |= {branch_name(name, None, digest([args])) for name, args in branches}
    taken = {names.branch(str(first), object(), lambda other: True) for first in firsts}
    assert not keys & taken


def test_calls_of_one_name_are_counted() -> None:
    names = Names()
    assert [names.key("f", None), names.key("g", None), names.key("f", None)] == ["f:1", "g:1", "f:2"]
    assert names.key("f", "a") == "f=a"
    assert names.key("f", "a") is None
    assert names.key("g", "a") == "g=a"


def test_branches_that_follow_each_other_are_counted_and_others_refused() -> None:
    names = Names()
    never: Callable[[Any], bool] = lambda other: False  # noqa: E731
    first = object()
    assert names.branch("f(1)", first, never) == "f(1)"
    assert names.branch("f(1)", first, never) == "f(1)"
    assert names.branch("f(1)", object(), never) is None
    assert names.branch("f(1)", object(), lambda other: other is first) == "f(1).2"
    assert names.branch("f(2)", object(), never) == "f(2)"


def test_a_branch_without_key_or_arguments_has_no_name() -> None:
    assert branch_name("f", None, None) is None


@pytest.mark.parametrize(("one", "other"), [([1], [True]), ([1], [1.0]), ([0.0], [-0.0]), (["1"], [1]), ([{}], [[]])])
def test_arguments_that_differ_in_type_alone_are_told_apart(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_the_order_of_keyword_arguments_does_not_matter() -> None:
    assert digest([{"a": 1, "b": 2}]) == digest([{"b": 2, "a": 1}])
