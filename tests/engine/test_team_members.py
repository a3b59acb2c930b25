"""The members of a team: functions with policies, flows, people who are asked; and what data each says it takes."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from typing import Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from conftest import MakeRuntime
from holdfast import Checkpoint, Handover, Pipeline, RetryPolicy, Runtime, Strategy, Team, Terminate, ask, flow, step
from holdfast.errors import RunFailedError, UsageError
from waiting import until_status


def a(data: list[str]) -> list[str]:
    return [*data, "a"]


async def b(data: list[str]) -> list[str]:
    return [*data, "b"]


def c(data: list[str]) -> None:
    data.append("c")


async def checkpoints(rt: Runtime, run: str = "r1") -> list[Checkpoint]:
    return [checkpoint async for checkpoint in rt.checkpoints(run)]


# Members


async def test_members_may_be_flows_which_are_runs_of_their_own(make_runtime: MakeRuntime) -> None:
    @flow
    async def shout(data: list[str]) -> list[str]:
        return [word.upper() for word in data]

    inner = Team("inner", [a, b])
    async with make_runtime() as rt:
        team = Team("t", [a, shout, inner, Pipeline("pipe", [c])])
        assert await rt.run(team, [], id="r1") == ["A", "a", "b", "c"]
        children = {run.flow: run.parent async for run in rt.list() if run.id != "r1"}
    assert team.step_names == ("a", "shout", "inner", "pipe")
    assert children == {"shout": "r1", "inner": "r1", "pipe": "r1"}


async def test_a_flow_can_be_handed_over_to_and_its_failure_fails_the_team_there(make_runtime: MakeRuntime) -> None:
    broken = [True]

    @flow
    async def fragile(data: list[str]) -> list[str]:
        if broken:
            raise ConnectionError("down")
        return [*data, "fragile"]

    def first(data: list[str]) -> Handover:
        return Handover(fragile, ["handed over"])

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="down") as info:
            await rt.run(Team("t", [first, b, fragile]), [], id="r1")
        assert info.value.step == "fragile"
        broken.clear()
        assert await (await rt.resume("r1")).result() == ["handed over", "fragile"]


async def test_a_member_has_its_own_retries_and_each_attempt_its_own_data(make_runtime: MakeRuntime) -> None:
    seen: list[list[str]] = []

    @step(retry=RetryPolicy(attempts=3, first_delay=0), name="shaky one")
    def shaky(data: list[str]) -> None:
        seen.append(list(data))
        data.append("shaky")
        if len(seen) < 3:
            raise ConnectionError("down")

    async with make_runtime() as rt:
        assert await rt.run(Team("t", [a, shaky]), [], id="r1") == ["a", "shaky"]
    assert seen == [["a"]] * 3


async def test_a_member_has_its_own_timeout(make_runtime: MakeRuntime) -> None:
    @step(timeout=0.05)
    async def slow(data: Any) -> None:
        await asyncio.Event().wait()

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"'slow' took longer than its timeout of 0.05 s"):
            await rt.run(Team("t", [a, slow]), [], id="r1")


async def test_a_member_may_ask_a_person_and_needs_no_process_meanwhile(make_runtime: MakeRuntime) -> None:
    async def review(data: list[str]) -> Any:
        return [*data, "approved"] if await ask("Good?", data=data, schema=bool) else Handover(a)

    team = Team("t", [a, review])
    async with make_runtime() as rt:
        await rt.start(team, [], id="r1")
        await until_status(rt, "r1", "waiting")
    async with make_runtime() as rt:
        rt.register(team)
        await rt.answer("r1", False)
        handle = asyncio.ensure_future(rt.run(team, [], id="r1"))
        while not [question async for question in rt.asks("r1") if not question.unread]:
            await asyncio.sleep(0.005)
        await rt.answer("r1", True)
        assert await handle == ["a", "a", "approved"]


async def test_nameless_members_are_named_by_their_place(make_runtime: MakeRuntime) -> None:
    team = Team("t", [lambda data: data + 1, functools.partial(lambda data: data * 10), lambda data: Handover("last")])
    assert team.step_names == ("member-1", "member-2", "member-3")
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="'last'"):
            await rt.run(team, 1, id="r1")
        assert [point.state for point in await checkpoints(rt)] == [1, 2, 20]


# Typed data


@dataclass
class Draft:
    topic: str
    lines: list[str] = field(default_factory=list)


class Order(pydantic.BaseModel):
    amount: int
    paid: bool = False


class Point(msgspec.Struct):
    x: int
    y: int = 0


@attrs.define
class Pair:
    left: int
    right: int = 0


async def test_data_is_made_to_be_what_a_member_says_it_takes(make_runtime: MakeRuntime) -> None:
    seen: list[Any] = []

    def draft(data: Draft) -> dict[str, int]:
        seen.append(data)
        return {"amount": 3}

    async def order(data: Order) -> dict[str, int]:
        seen.append(data)
        return {"x": 1}

    class Members:
        def point(self, data: Point) -> dict[str, int]:
            seen.append(data)
            return {"left": 4}

        def __call__(self, data: Pair) -> Pair:
            seen.append(data)
            return data

    team = Team("t", [draft, order, Members().point, step(name="pair")(Members())])
    async with make_runtime() as rt:
        assert await rt.run(team, {"topic": "tides"}, id="r1") == Pair(4)
        assert await rt.run(team, {"topic": "tides"}, id="r1") == Pair(4)
    assert seen == [Draft("tides"), Order(amount=3), Point(1), Pair(4)]


async def test_a_selector_gets_what_it_says_it_takes_too(make_runtime: MakeRuntime) -> None:
    def write(draft: Draft) -> None:
        draft.lines.append("line")

    def selector(draft: Draft) -> Any:
        return write if len(draft.lines) < 2 else None

    team = Team("t", [write], Strategy.SELECTOR, selector=selector)
    async with make_runtime() as rt:
        assert await rt.run(team, {"topic": "tides"}, id="r1") == Draft("tides", ["line", "line"])
        with pytest.raises(UsageError, match="topic"):
            await rt.start(team, {"subject": "tides"}, id="r2")


async def test_an_input_that_does_not_fit_the_first_member_is_refused_before_there_is_a_run(
    make_runtime: MakeRuntime,
) -> None:
    def first(data: Order) -> None:
        raise AssertionError("not called")

    async with make_runtime() as rt:
        with pytest.raises(UsageError, match="amount"):
            await rt.start(Team("t", [first]), {"amount": "much"}, id="r1")
        assert await rt.get("r1") is None


async def test_data_that_does_not_fit_a_later_member_fails_the_run_there(make_runtime: MakeRuntime) -> None:
    def second(data: Draft) -> None:
        raise AssertionError("not called")

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"member 'second' of team 't' takes Draft: .*topic"):
            await rt.run(Team("t", [lambda data: {"subject": "tides"}, second]), {}, id="r1")
        run = await rt.get("r1")
    assert run is not None
    assert (run.status, run.step, run.next) == ("failed", 1, "second")


class Fields(TypedDict):
    n: int


async def test_other_annotations_only_say_what_they_say(make_runtime: MakeRuntime) -> None:
    def typed_dict(data: Fields) -> Fields | Handover:
        return {"n": data["n"] + 1}

    def union(data: Draft | dict[str, int]) -> Handover | dict[str, int]:
        return Handover("number", {"n": 7})

    def number(data: float) -> Terminate | float:
        return Terminate(type(data).__name__)

    def unknown(data: NoSuchName) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    async with make_runtime() as rt:
        assert await rt.run(Team("t", [typed_dict, union, unknown, number]), {"n": 1}, id="r1") == "dict"


async def test_declared_types_inside_an_annotation_are_stored_and_built_again(make_runtime: MakeRuntime) -> None:
    def first(data: list[Draft]) -> list[Draft]:
        return [*data, Draft("second")]

    async with make_runtime() as rt:
        assert await rt.run(Team("t", [first, c]), [Draft("first")], id="r1") == [Draft("first"), Draft("second"), "c"]
