"""Teams: who takes the next turn, and how it ends."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from conftest import MakeRuntime
from holdfast import Handover, RetryPolicy, Strategy, Team, Terminate, ask, step
from holdfast.errors import RunFailedError, RunWaitingError, StepMissingError, TooManyStepsError, UnknownTargetError

Data = dict[str, Any]


def a(data: list[str]) -> list[str]:
    return [*data, "a"]


async def b(data: list[str]) -> list[str]:
    return [*data, "b"]


def c(data: list[str]) -> None:
    data.append("c")


# Strategies


async def test_a_sequence_passes_the_data_from_member_to_member(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, b, c]), [], id="r1") == ["a", "b", "c"]
        run = await rt.get("r1")
    assert run is not None
    assert (run.status, run.step, run.total_steps, run.step_names) == ("completed", 3, 3, ("a", "b", "c"))


async def test_round_robin_goes_round_until_somebody_terminates(make_runtime: MakeRuntime) -> None:
    def judge(data: list[str]) -> Any:
        return Terminate() if len(data) >= 5 else None

    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, b, judge], Strategy.ROUND_ROBIN), [], id="r1") == ["a", "b"] * 3
        run = await rt.get("r1")
    assert run is not None
    assert run.step == 9
    assert run.total_steps is None


def by_length(data: list[str]) -> str | None:
    return {0: "b", 1: "a", 2: "b"}.get(len(data))


async def by_length_awaited(data: list[str]) -> str | None:
    await asyncio.sleep(0)
    return by_length(data)


def by_function(data: list[str]) -> Any:
    return {0: b, 1: a, 2: b}.get(len(data))


@pytest.mark.parametrize(
    "selector", [by_length, by_length_awaited, by_function, step(by_length), functools.partial(by_length)]
)
async def test_a_selector_names_the_next_member_until_it_names_nobody(make_runtime: MakeRuntime, selector: Any) -> None:
    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, b], Strategy.SELECTOR, selector=selector), [], id="r1") == ["b", "a", "b"]


async def test_a_selector_that_names_nobody_at_once_gives_the_input_back(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        team = Team("t", [a], Strategy.SELECTOR, selector=lambda data: None)
        assert await rt.run(team, ["as it was"], id="r1") == ["as it was"]


async def test_what_a_selector_or_a_condition_does_to_the_data_is_lost(make_runtime: MakeRuntime) -> None:
    def selector(data: list[str]) -> str | None:
        data.append("selector was here")
        return "a" if len(data) == 1 else None

    def condition(data: list[str]) -> bool:
        data.append("condition was here")
        return True

    async with make_runtime() as rt:
        assert await rt.run(Team("s", [a], Strategy.SELECTOR, selector=selector), [], id="r1") == ["a"]
        assert await rt.run(Team("g", [a, b], Strategy.GRAPH, edges={a: (b, condition)}), [], id="r2") == ["a", "b"]


async def test_the_selector_is_asked_before_each_turn_and_that_is_no_turn(make_runtime: MakeRuntime) -> None:
    team = Team("t", [a, b], Strategy.SELECTOR, selector=by_length, max_turns=3)
    async with make_runtime() as rt:
        assert await rt.run(team, [], id="r1") == ["b", "a", "b"]
        steps = [event.step async for event in rt.events("r1") if event.type == "step_completed"]
    assert steps == ["(selector)", "b", "(selector)", "a", "(selector)", "b", "(selector)"]


async def test_a_selector_that_fails_is_tried_by_its_own_policy_and_no_member_takes_its_turn_again(
    make_runtime: MakeRuntime,
) -> None:
    turns, asked = list[str](), list[int]()

    def member(data: int) -> int:
        turns.append("member")
        return data + 1

    @step(retry=RetryPolicy(attempts=3, first_delay=0))
    async def selector(data: int) -> str | None:
        asked.append(data)
        if asked.count(1) in (1, 2):
            raise ConnectionError("the model is away")
        return None if data else "member"

    async with make_runtime() as rt:
        assert await rt.run(Team("t", [member], Strategy.SELECTOR, selector=selector), 0, id="r1") == 1
    assert (turns, asked) == (["member"], [0, 1, 1, 1])


@pytest.mark.parametrize(("amount", "way"), [(5, "small"), (500, "large"), (50, "neither")])
async def test_edges_lead_on_and_of_several_the_first_whose_condition_holds_counts(
    make_runtime: MakeRuntime, amount: int, way: str
) -> None:
    def look(data: Data) -> None:
        pass

    def small(data: Data) -> Data:
        return {**data, "way": "small"}

    def large(data: Data) -> Data:
        return {**data, "way": "large"}

    def neither(data: Data) -> Data:
        return {**data, "way": "neither"}

    async def much(data: Data) -> bool:
        await asyncio.sleep(0)
        return bool(data["amount"] > 100)

    edges = {look: [(small, lambda data: data["amount"] < 10), ("large", much), "neither"]}
    async with make_runtime() as rt:
        team = Team("t", [look, small, large, neither], Strategy.GRAPH, edges=edges)
        assert await rt.run(team, {"amount": amount}, id="r1") == {"amount": amount, "way": way}


async def test_a_loop_of_edges_ends_where_no_condition_holds_and_where_there_is_no_edge(
    make_runtime: MakeRuntime,
) -> None:
    async with make_runtime() as rt:
        loop = Team("loop", [a, b], Strategy.GRAPH, edges={a: b, b: [(a, lambda data: len(data) < 5)]})
        assert await rt.run(loop, [], id="r1") == ["a", "b", "a", "b", "a", "b"]
        line = Team("line", [b, a, c], Strategy.GRAPH, edges={b: a})
        assert await rt.run(line, [], id="r2") == ["b", "a"]


async def test_an_edge_may_be_a_function_that_names_the_next_one(make_runtime: MakeRuntime) -> None:
    async def then(data: list[str]) -> Any:
        await asyncio.sleep(0)
        return "b" if len(data) < 3 else c if len(data) == 3 else None

    async with make_runtime() as rt:
        team = Team("t", [a, b, c], Strategy.GRAPH, edges={a: then, b: then, c: lambda data: None})
        assert await rt.run(team, [], id="r1") == ["a", "b", "b", "c"]


@pytest.mark.parametrize("strategy", ["sequential", "round_robin", "selector", "graph"])
async def test_a_handover_goes_before_every_strategy(make_runtime: MakeRuntime, strategy: str) -> None:
    def first(data: list[str]) -> Handover:
        return Handover("third")

    def second(data: list[str]) -> list[str]:
        raise AssertionError("it was passed over")

    def third(data: list[str]) -> Any:
        return Terminate([*data, "third"])

    more: Data = {"selector": lambda data: first} if strategy == "selector" else {}
    more |= {"edges": {first: second, second: third}} if strategy == "graph" else {}
    async with make_runtime() as rt:
        team = Team("t", [first, second, third], Strategy(strategy), **more)
        assert await rt.run(team, ["in"], id="r1") == ["in", "third"]


# Handover and Terminate


@pytest.mark.parametrize("by_name", [True, False])
async def test_a_handover_replaces_the_data_or_takes_along_what_was_done_to_it(
    make_runtime: MakeRuntime, by_name: bool
) -> None:
    def with_data(data: Data) -> Handover:
        return Handover("without" if by_name else without, {"given": data["n"]})

    def without(data: Data) -> Handover:
        data["changed"] = True
        return Handover("last" if by_name else last)

    def last(data: Data) -> Data:
        return data

    async with make_runtime() as rt:
        team = Team("t", [with_data, without, last])
        assert await rt.run(team, {"n": 1}, id="r1") == {"given": 1, "changed": True}


async def test_a_handover_can_go_back_and_the_sequence_goes_on_from_there(make_runtime: MakeRuntime) -> None:
    def check(data: list[str]) -> Any:
        return Handover(a) if data.count("a") < 3 else None

    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, check, b]), [], id="r1") == ["a", "a", "a", "b"]
        run = await rt.get("r1")
    assert run is not None
    assert (run.step, run.progress) == (7, 100.0)


@pytest.mark.parametrize("result", ["done", None, 0, {"k": (1, {2})}])
async def test_terminate_ends_the_run_with_its_result_and_leaves_the_data(
    make_runtime: MakeRuntime, result: Any
) -> None:
    def stop(data: list[str]) -> Any:
        data.append("stop")
        return Terminate(result)

    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, stop, b]), [], id="r1") == result
        last = await rt.load("r1")
    assert last is not None
    assert (last.state, last.after, last.next) == (["a", "stop"], "stop", None)
    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, stop, b]), [], id="r1") == result


async def test_terminate_without_a_result_ends_with_the_data(make_runtime: MakeRuntime) -> None:
    def stop(data: list[str]) -> Any:
        data.append("stop")
        return Terminate()

    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, stop, b]), [], id="r1") == ["a", "stop"]


@pytest.mark.parametrize("target", ["nobody", None, 3, "c", "(selector)"])
async def test_a_handover_to_nobody_names_the_place_fails_the_run_there_and_a_resume_goes_on(
    make_runtime: MakeRuntime, target: Any
) -> None:
    targets, turns = [target, "b"], list[str]()

    @step(retry=RetryPolicy(attempts=5))
    def lost(data: list[str]) -> Handover:
        turns.append("lost")
        return Handover(targets.pop(0))

    async with make_runtime() as rt:
        wrong = rf"the handover of member 'lost' of team 't' chose '{target}'.*there are: a, lost, b"
        with pytest.raises(RunFailedError, match=wrong.replace("(", r"\(").replace(")", r"\)")) as info:
            await rt.run(Team("t", [a, lost, b]), [], id="r1")
        assert isinstance(info.value.__cause__, UnknownTargetError)
        assert info.value.step == "lost"
        assert turns == ["lost"]  # trying again is of no use
        assert await (await rt.resume("r1")).result() == ["a", "b"]


@pytest.mark.parametrize("choice", ["nobody", 3, "", "(selector)"])
async def test_a_choice_of_nobody_fails_the_run_behind_the_turn_that_was_taken(
    make_runtime: MakeRuntime, choice: Any
) -> None:
    choices, turns = ["first", choice, None], list[str]()

    def first(data: int) -> int:
        turns.append("first")
        return data + 1

    team = Team("t", [first], Strategy.SELECTOR, selector=lambda data: choices.pop(0))
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"the selector of team 't' chose .*there are: first") as info:
            await rt.run(team, 0, id="r1")
        assert isinstance(info.value.__cause__, UnknownTargetError)
        assert await (await rt.resume("r1")).result() == 1
    assert turns == ["first"]


async def test_an_edge_that_names_nobody_fails_the_run_at_its_member_and_a_resume_goes_on(
    make_runtime: MakeRuntime,
) -> None:
    names = ["nobody", "b"]
    team = Team("t", [a, b], Strategy.GRAPH, edges={a: lambda data: names.pop(0)})
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"the edge of member 'a' of team 't' chose 'nobody'"):
            await rt.run(team, [], id="r1")
        assert await (await rt.resume("r1")).result() == ["a", "b"]


async def test_a_member_that_is_gone_is_named_and_the_run_stays_as_it_is(make_runtime: MakeRuntime) -> None:
    def broken(data: list[str]) -> list[str]:
        raise ConnectionError("down")

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(Team("t", [a, broken]), [], id="r1")
    async with make_runtime() as rt:
        rt.register(Team("t", [a, b]))
        with pytest.raises(StepMissingError, match="'broken'"):
            await rt.resume("r1")
    async with make_runtime() as rt:
        rt.register(Team("t", [a, step(name="broken")(c)]))
        assert await (await rt.resume("r1")).result() == ["a", "c"]


# Turns


@pytest.mark.parametrize("strategy", ["sequential", "round_robin", "selector", "graph"])
@pytest.mark.parametrize("mode", ["error", "return"])
async def test_max_turns_counts_every_turn_whatever_the_strategy(
    make_runtime: MakeRuntime, strategy: str, mode: Any
) -> None:
    turns = []

    def endless(data: int) -> Any:
        turns.append(data)
        return Handover("endless") if strategy == "sequential" else data + 1

    more: Data = {"selector": lambda data: endless} if strategy == "selector" else {}
    more |= {"edges": {endless: endless}} if strategy == "graph" else {}
    team = Team("t", [endless], Strategy(strategy), max_turns=3, on_max_turns=mode, **more)
    async with make_runtime() as rt:
        if mode == "return":
            assert await rt.run(team, 0, id="r1") == (0 if strategy == "sequential" else 3)
        else:
            with pytest.raises(RunFailedError, match=r"team 't' has taken 3 steps and would go on with") as info:
                await rt.run(team, 0, id="r1")
            assert isinstance(info.value.__cause__, TooManyStepsError)
        steps = [event.step async for event in rt.events("r1") if event.type == "step_completed"]
    assert len(turns) == steps.count("endless") == 3


async def test_max_turns_of_exactly_what_is_needed_is_enough(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, b], max_turns=2), [], id="r1") == ["a", "b"]
        team = Team("s", [a, b], Strategy.SELECTOR, selector=by_length, max_turns=3)
        assert await rt.run(team, [], id="r2") == ["b", "a", "b"]


@pytest.mark.parametrize(("more", "result"), [({"max_turns": 5}, 5), ({"max_turns": 3}, 3), ({"max_turns": 2}, 3)])
async def test_a_run_that_took_too_many_turns_goes_on_with_another_limit(
    make_runtime: MakeRuntime, more: Data, result: int
) -> None:
    def count(data: int) -> int:
        return data + 1

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(Team("t", [count], Strategy.ROUND_ROBIN, max_turns=3), 0, id="r1")
    async with make_runtime() as rt:
        rt.register(Team("t", [count], Strategy.ROUND_ROBIN, on_max_turns="return", **more))
        assert await (await rt.resume("r1")).result() == result


async def test_max_turns_does_not_ask_who_would_be_next_when_it_returns(make_runtime: MakeRuntime) -> None:
    asked: list[int] = []

    def selector(data: list[str]) -> str:
        asked.append(len(data))
        return "a"

    limit: Data = {"max_turns": 2, "on_max_turns": "return"}
    async with make_runtime() as rt:
        team = Team("s", [a], Strategy.SELECTOR, selector=selector, **limit)
        assert await rt.run(team, [], id="r1") == ["a", "a"]
        assert asked == [0, 1]
        assert await rt.run(Team("g", [a], Strategy.GRAPH, edges={a: selector}, **limit), [], id="r2") == ["a", "a"]
    assert asked == [0, 1, 1]


async def test_a_team_that_hands_over_again_and_again_does_not_say_that_it_is_done(make_runtime: MakeRuntime) -> None:
    async def write(turns: int) -> Any:
        if turns == 5:
            await ask("Is it good?")
        return turns + 1

    async def review(turns: int) -> Any:
        return Handover("write", turns + 1)

    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(Team("paper", [write, review]), 1, id="r1", until="settled")
        run = await rt.get("r1")
        assert run is not None
        assert (run.step, run.total_steps, run.progress) == (4, None, 0.0)
