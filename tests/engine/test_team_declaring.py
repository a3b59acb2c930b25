"""What is wrong with a team is told when it is declared, all of it at once."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import CheckpointPolicy, Pipeline, Strategy, Team, flow, step
from holdfast.errors import UsageError


def a(data: Any) -> Any:
    return data


async def b(data: Any) -> Any:
    return data


@step(name="b")
def other_b(data: Any) -> Any:
    return data


@step(name="(selector)")
def badly_named(data: Any) -> Any:
    return data


@flow
async def no_member(data: Any) -> Any:
    return data


GRAPH: dict[str, Any] = {"strategy": Strategy.GRAPH}


@pytest.mark.parametrize(
    ("members", "options", "problem"),
    [
        ([], {}, "it has no members"),
        ((), {}, "it has no members"),
        ("ab", {}, "its members are a list of functions, not 'ab'"),
        (None, {}, "its members are a list of functions, not None"),
        ([a, 3], {}, "member 2 is neither a function nor a flow: 3"),
        ([a, a], {}, "two members are named 'a': give one of them another"),
        ([b, other_b], {}, "two members are named 'b'"),
        ([a, Pipeline("a", [b])], {}, "two members are named 'a'"),
        ([badly_named], {}, "a member cannot be named '(selector)'"),
        ([a], {"max_turns": 0}, "max_turns=0 must be a whole number of at least 1"),
        ([a], {"max_turns": -1}, "max_turns=-1 must be"),
        ([a], {"max_turns": True}, "max_turns=True must be"),
        ([a], {"max_turns": 2.0}, "max_turns=2.0 must be"),
        ([a], {"max_turns": None}, "max_turns=None must be"),
        ([a], {"on_max_turns": "stop"}, "on_max_turns='stop' must be 'error' or 'return'"),
        ([a], {"strategy": "random"}, "strategy='random' must be one of Strategy.SEQUENTIAL"),
        ([a], {"strategy": []}, "strategy=[] must be one of"),
        ([a], {"strategy": Strategy.SELECTOR}, "strategy SELECTOR and selector= go together"),
        ([a], {"selector": a}, "strategy SELECTOR and selector= go together"),
        ([a], {"strategy": Strategy.SELECTOR, "selector": "a"}, "selector='a' is not a function"),
        ([a], GRAPH, "strategy GRAPH and edges= go together"),
        ([a], {"edges": {}}, "strategy GRAPH and edges= go together"),
        ([a], {**GRAPH, "edges": [(a, a)]}, "edges are {member: next}, not [("),
        ([a], {**GRAPH, "edges": {b: a}}, "an edge begins at 'b', which is no member"),
        ([a], {**GRAPH, "edges": {a: "b"}}, "the edge of 'a' leads to 'b', which is no member"),
        ([a], {**GRAPH, "edges": {a: ["b", a]}}, "the edge of 'a' leads to 'b', which is no member"),
        ([a], {**GRAPH, "edges": {a: ("b", None)}}, "the edge of 'a' leads to 'b', which is no member"),
        ([a], {**GRAPH, "edges": {a: [(a, True)]}}, "the edge of 'a' is no (member, condition): ("),
        ([a], {**GRAPH, "edges": {a: [(a,)]}}, "the edge of 'a' is no (member, condition): ("),
        ([a], {**GRAPH, "edges": {a: no_member}}, "the edge of 'a' leads to 'no_member', which is no member"),
        ([a], {**GRAPH, "edges": {a: other_b}}, "the edge of 'a' leads to 'b', which is no member"),
        ([a], {"on_step": "print"}, "on_step='print' is not a function"),
        ([a], {"on_request": 1}, "on_request=1 is not a function"),
        ([a], {"on_response": []}, "on_response=[] is not a function"),
    ],
)
def test_a_team_that_cannot_be_is_refused_and_the_problem_is_named(
    members: Any, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as info:
        Team("t", members, **options)
    assert str(info.value).startswith(f"team 't' is not right:\n  - {problem}")


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(UsageError) as info:
        Team(
            "t",
            [a, a, None],
            Strategy.GRAPH,
            edges={"x": "y"},
            max_turns=0,
            on_max_turns="stop",  # type: ignore[arg-type]
            on_step=1,  # type: ignore[arg-type]
        )
    problems = str(info.value).split("\n  - ")[1:]
    for wrong in ("two members", "member 3", "max_turns=0", "on_max_turns=", "on_step=1", "begins at 'x'", "to 'y'"):
        assert len([problem for problem in problems if wrong in problem]) == 1
    assert len(problems) == 7


@pytest.mark.parametrize("name", ["", None, 3, "x" * 201, "\ud800"])
def test_the_name_of_a_team_is_a_text(name: Any) -> None:
    with pytest.raises(UsageError, match="the name of a team is a text"):
        Team(name, [a])


def test_a_policy_is_a_policy() -> None:
    with pytest.raises(UsageError, match="CheckpointPolicy"):
        Team("t", [a], policy={"every_n_steps": 2})  # type: ignore[arg-type]
    assert Team("t", [a], policy=CheckpointPolicy(every_n_steps=2)).policy is not None


def test_a_team_shows_itself_by_its_name_strategy_and_members() -> None:
    assert repr(Team("t", [a, b], Strategy.ROUND_ROBIN)) == "<team t (round_robin): a, b>"


def test_a_strategy_may_be_given_by_its_name() -> None:
    assert Team("t", [a], "round_robin").strategy is Strategy.ROUND_ROBIN  # type: ignore[arg-type]


def test_members_may_be_given_as_any_iterable() -> None:
    assert Team("t", (member for member in (a, b))).step_names == ("a", "b")  # type: ignore[arg-type]
