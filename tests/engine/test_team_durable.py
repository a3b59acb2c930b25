"""Teams that are watched, saved now and then, cut off, gone back with, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.lives import Lives, Once
from holdfast import (
    CheckpointPolicy,
    Event,
    Handover,
    Pipeline,
    RetryPolicy,
    Strategy,
    Team,
    Terminate,
    call,
    current_run,
    flow,
    step,
)
from holdfast.errors import (
    CallInDoubtError,
    NotACheckpointError,
    RunCancelledError,
    RunFailedError,
    RunWaitingError,
    StepMissingError,
)
from holdfast.testing import ManualClock
from waiting import until_status


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


def a(data: list[str]) -> list[str]:
    return [*data, "a"]


async def b(data: list[str]) -> list[str]:
    return [*data, "b"]


def c(data: list[str]) -> None:
    data.append("c")


# Hooks


class Ear:
    """Hooks that write down what they were told, def or async."""

    def __init__(self, *, awaited: bool) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.awaited = awaited

    def hooks(self) -> dict[str, Any]:
        return {name: self._hook(name) for name in ("on_request", "on_response", "on_step")}

    def _hook(self, hook: str) -> Any:
        def told(*what: Any) -> None:
            self.told.append((hook, *what))

        async def told_later(*what: Any) -> None:
            await asyncio.sleep(0)
            self.told.append((hook, *what))

        return told_later if self.awaited else told

    def turns(self) -> list[tuple[Any, ...]]:
        return [what for what in self.told if what[1] != "checkpoint"]


@pytest.mark.parametrize("awaited", [False, True])
async def test_hooks_are_told_of_every_turn_and_of_the_one_that_terminates(
    make_runtime: MakeRuntime, awaited: bool
) -> None:
    def hand(data: list[str]) -> Handover:
        return Handover("stop", ["handed"])

    def stop(data: list[str]) -> Any:
        return Terminate({"result": data})

    ear = Ear(awaited=awaited)
    async with make_runtime() as rt:
        assert await rt.run(Team("t", [c, hand, b, stop], **ear.hooks()), [], id="r1") == {"result": ["handed"]}
    turns = {"c": ([], ["c"]), "hand": (["c"], ["handed"]), "stop": (["handed"], {"result": ["handed"]})}
    expected: list[tuple[Any, ...]] = []
    for name, (before, after) in turns.items():
        expected += [("on_request", name, before), ("on_response", name, after), ("on_step", name, before, after)]
    assert ear.turns() == expected


@pytest.mark.parametrize("awaited", [False, True])
async def test_on_step_is_told_of_every_checkpoint_with_an_id_that_can_be_loaded(
    make_runtime: MakeRuntime, awaited: bool
) -> None:
    ear = Ear(awaited=awaited)
    async with make_runtime() as rt:
        team = Team("t", [a, b, c], policy=CheckpointPolicy(every_n_steps=2), on_step=ear.hooks()["on_step"])
        await rt.run(team, [], id="r1")
    saved = [what[3] for what in ear.told if what[1] == "checkpoint"]
    async with make_runtime() as rt:
        points = [await rt.load(id) for id in saved]
    assert [what[2] for what in ear.told if what[1] == "checkpoint"] == [None, None]
    assert [point and point.after for point in points] == ["b", "c"]


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_hook_that_raises_or_changes_the_data_does_not_hurt(
    make_runtime: MakeRuntime, caplog: pytest.LogCaptureFixture, awaited: bool
) -> None:
    def bad(name: str, *data: Any) -> None:
        for given in data:
            if isinstance(given, list):
                given.append("hook was here")
        raise ValueError(f"the hook cannot take {name}")

    async def bad_later(name: str, *data: Any) -> None:
        bad(name, *data)

    hook = bad_later if awaited else bad
    async with make_runtime() as rt:
        team = Team("t", [a, b], on_request=hook, on_response=hook, on_step=hook)
        with caplog.at_level(logging.ERROR, "holdfast"):
            assert await rt.run(team, [], id="r1") == ["a", "b"]
    assert "on_request of team t raised" in caplog.text
    assert "on_response of team t raised" in caplog.text
    assert "on_step of team t raised" in caplog.text


async def test_a_hook_knows_the_run_that_it_is_told_of(make_runtime: MakeRuntime) -> None:
    seen: list[tuple[str, str | None]] = []

    def hook(name: str, data: Any) -> None:
        seen.append((current_run().id, current_run().step))

    async with make_runtime() as rt:
        await rt.run(Team("t", [a, b], on_request=hook, on_response=hook), [], id="r1")
    assert seen == [("r1", "a"), ("r1", "a"), ("r1", "b"), ("r1", "b")]


async def test_each_attempt_is_a_request_and_only_the_one_that_works_a_response(make_runtime: MakeRuntime) -> None:
    failures = [1, 2]

    @step(retry=RetryPolicy(attempts=3, first_delay=0))
    def shaky(data: list[str]) -> None:
        if failures:
            raise ConnectionError(failures.pop())

    ear = Ear(awaited=False)
    async with make_runtime() as rt:
        await rt.run(Team("t", [shaky], **ear.hooks()), [], id="r1")
    assert [what[0] for what in ear.turns()] == ["on_request"] * 3 + ["on_response", "on_step"]


# What can be read


async def test_the_history_of_turns_is_in_the_checkpoints(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(Team("t", [a, b], Strategy.ROUND_ROBIN, max_turns=3, on_max_turns="return"), [], id="r1")
        turns = [(point.step, point.after, point.next, point.state) async for point in rt.checkpoints("r1")]
    assert turns == [
        (0, None, "a", []),
        (1, "a", "b", ["a"]),
        (2, "b", "a", ["a", "b"]),
        (3, "a", None, ["a", "b", "a"]),
    ]


async def test_steps_stream_to_whoever_follows_and_to_on_event_as_they_happen(make_runtime: MakeRuntime) -> None:
    gate, shown, followed = asyncio.Event(), list[tuple[str, str | None]](), list[tuple[str, str | None]]()

    async def waits(data: list[str]) -> list[str]:
        await gate.wait()
        return [*data, "waits"]

    async with make_runtime(on_event=lambda event: shown.append((event.type, event.step))) as rt:
        await rt.start(Team("t", [a, waits, b]), [], id="r1")
        async with asyncio.timeout(20):
            async for event in rt.events("r1", follow=True):
                followed.append((event.type, event.step))
                if event.type == "checkpointed" and event.step == "a":
                    gate.set()  # the first turn is seen while the second is under way
    steps = [
        (kind, name) for name in ("a", "waits", "b") for kind in ("step_started", "step_completed", "checkpointed")
    ]
    assert [event for event in followed if event[1]] == steps
    assert [event for event in shown if event[1]] == steps


# Policies


async def states(lives: Lives, team: Team, input: Any = None) -> list[tuple[str | None, Any]]:
    """The checkpoints of a run of that team, each with the member that it was made after."""
    async with lives.runtime() as rt:
        with contextlib.suppress(RunFailedError):
            await rt.run(team, [] if input is None else input, id="r1")
        return [(point.after, point.state) async for point in rt.checkpoints("r1")]


def rounds(**options: Any) -> dict[str, Any]:
    return {"strategy": Strategy.ROUND_ROBIN, "max_turns": 5, "on_max_turns": "return", **options}


async def test_every_second_turn_is_saved_and_the_end(lives: Lives) -> None:
    team = Team("t", [a, b], **rounds(policy=CheckpointPolicy(every_n_steps=2)))
    assert [len(state) for _, state in await states(lives, team)] == [0, 2, 4, 5]


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4])])
async def test_every_so_many_turns_are_saved_and_not_what_the_selector_says_in_between(
    lives: Lives, every: int, saved: list[int]
) -> None:
    team = Team(
        "t",
        [a],
        Strategy.SELECTOR,
        selector=lambda data: a if len(data) < 5 else None,
        policy=CheckpointPolicy(every_n_steps=every),
    )
    assert await states(lives, team) == [
        (None, []),
        *[("a", ["a"] * turns) for turns in saved],
        ("(selector)", ["a"] * 5),
    ]


async def test_on_complete_saves_after_that_member_alone_and_the_end(lives: Lives) -> None:
    team = Team("t", [a, b, c], **rounds(policy=CheckpointPolicy(on_complete=["b"])))
    assert [(after, len(state)) for after, state in await states(lives, team)] == [(None, 0), ("b", 2), ("b", 5)]


async def test_keep_latest_leaves_so_many_to_load(lives: Lives, make_runtime: MakeRuntime) -> None:
    team = Team("t", [a, b], **rounds(policy=CheckpointPolicy(keep_latest=3)))
    assert [len(state) for _, state in await states(lives, team)] == [3, 4, 5]
    async with make_runtime() as rt:
        rt.register(team)
        async for point in rt.checkpoints("r1"):
            assert (await rt.load(point.id)) == point
        with pytest.raises(NotACheckpointError):
            await rt.fork("r1@1", id="r2")


async def test_ttl_removes_what_has_expired_and_never_the_last_of_an_unfinished_run(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    once = Once()

    async def slow(data: list[str]) -> list[str]:
        await once.wait()
        return [*data, "slow"]

    policy = CheckpointPolicy(ttl=timedelta(hours=1))
    team = Team("t", [a, b, slow], policy=policy)
    async with make_runtime(grace=0) as rt:
        assert await rt.run(Team("done", [a], policy=policy), [], id="r2") == ["a"]
        await rt.start(team, [], id="r1")
        await once.reached.wait()
    clock.advance(7200)
    async with make_runtime() as rt:
        await rt.prune()
        assert [point.state async for point in rt.checkpoints("r1")] == [["a", "b"]]
        assert [point.state async for point in rt.checkpoints("r2")] == []
        assert await rt.run(team, [], id="r1") == ["a", "b", "slow"]


async def test_turns_that_a_policy_did_not_save_are_taken_again_after_a_crash(lives: Lives) -> None:
    once, turns, keys = Once(), list[str](), dict[str, set[str]]()

    def member(name: str) -> Any:
        async def turn(data: list[str]) -> list[str]:
            turns.append(name)
            keys.setdefault(f"{name} {len(data)}", set()).add(current_run().idempotency_key)
            if len(data) == 3:
                await once.wait()
            return [*data, name]

        return step(name=name)(turn)

    team = Team("t", [member("a"), member("b")], **rounds(policy=CheckpointPolicy(every_n_steps=2)))
    await lives.cut(team, [], at=once.reached)
    assert await lives.finish(team, []) == ["a", "b", "a", "b", "a"]
    assert turns == ["a", "b", "a", "b", "a", "b", "a"]
    assert {len(seen) for seen in keys.values()} == {1}  # a turn that is taken again has the key that it had
    assert len(set.union(*keys.values())) == 5


async def test_calls_of_a_turn_are_found_again_though_the_choice_before_it_was_not_saved(lives: Lives) -> None:
    once, made = Once(), list[str]()

    async def fetch(what: str) -> str:
        made.append(what)
        return what

    async def member(data: list[str]) -> list[str]:
        found = await call(fetch, f"turn {len(data)}")
        if len(data) == 1:
            await once.wait()
        return [*data, found]

    async def selector(data: list[str]) -> Any:
        await call(fetch, f"choice {len(data)}")
        return member if len(data) < 2 else None

    policy = CheckpointPolicy(every_n_steps=100)
    team = Team("t", [member], Strategy.SELECTOR, selector=selector, policy=policy)
    await lives.cut(team, [], at=once.reached)
    assert await lives.finish(team, []) == ["turn 0", "turn 1"]
    assert made == ["choice 0", "turn 0", "choice 1", "turn 1", "choice 2"]
    assert await lives.events("calls_unasked") == []


# Going back, trying something else


@pytest.mark.parametrize("strategy", list(Strategy))
async def test_a_rewind_and_a_fork_go_on_with_the_member_that_was_next(
    make_runtime: MakeRuntime, strategy: Strategy
) -> None:
    more: dict[str, Any] = {}
    if strategy is Strategy.SELECTOR:
        more["selector"] = lambda data: {0: a, 1: b, 2: a}.get(len(data))
    if strategy is Strategy.GRAPH:
        more["edges"] = {a: [(b, lambda data: len(data) < 3)], b: a}
    team = Team(
        "t",
        [a, b, c] if strategy is Strategy.SEQUENTIAL else [a, b],
        strategy,
        max_turns=3,
        on_max_turns="return",
        **more,
    )
    async with make_runtime() as rt:
        result = await rt.run(team, [], id="r1")
        points = [point async for point in rt.checkpoints("r1")]
        for number, point in enumerate(points[:-1]):
            assert await (await rt.fork(point.id, id=f"f{number}")).result() == result
        forked = await rt.fork(points[1].id, id="other", state=["other"])
        assert (await forked.result())[0] == "other"
        assert await (await rt.rewind(points[1].id)).result() == result


# Cut off


async def test_a_member_that_must_not_be_repeated_is_not_and_its_handover_is_found(lives: Lives) -> None:
    once, paid = Once(), list[int]()

    @step(on_doubt="fail")
    async def pay(data: dict[str, int]) -> Handover:
        paid.append(data["amount"])
        data["paid"] = 1
        return Handover("thank")

    async def skipped(data: dict[str, int]) -> None:
        raise AssertionError("it was passed over")

    async def thank(data: dict[str, int]) -> Terminate:
        return Terminate(sorted(data))

    async def told(name: str, before: Any, after: Any) -> None:
        if name == "pay":
            await once.wait()  # behind the call, before the commit of the turn

    team = Team("t", [pay, skipped, thank], on_step=told)
    await lives.cut(team, {"amount": 20}, at=once.reached)
    assert await lives.finish(team, {"amount": 20}) == ["amount", "paid"]
    assert paid == [20]


@pytest.mark.parametrize("result", [(), ("over",)])
async def test_a_terminate_that_is_found_again_ends_with_the_same_result_and_data(
    lives: Lives, make_runtime: MakeRuntime, result: tuple[str, ...]
) -> None:
    once = Once()

    @step(on_doubt="ask")
    async def stop(data: list[str]) -> Terminate:
        data.append("stop")
        return Terminate(*result)

    async def told(*what: Any) -> None:
        await once.wait()

    team = Team("t", [stop], on_response=told)
    await lives.cut(team, [], at=once.reached)
    assert await lives.finish(team, []) == (result[0] if result else ["stop"])
    async with make_runtime() as rt:
        last = await rt.load("r1")
    assert last is not None
    assert last.state == ["stop"]


async def test_a_member_in_doubt_fails_the_run_or_asks(lives: Lives, make_runtime: MakeRuntime) -> None:
    once, paid = Once(), list[str]()

    def pay(on_doubt: Any) -> Any:
        @step(name="pay", on_doubt=on_doubt)
        async def paying(data: list[str]) -> list[str]:
            paid.append(on_doubt)
            await once.wait()
            return [*data, "paid"]

        return paying

    await lives.cut(Team("t", [a, pay("fail"), b]), [], at=once.reached)
    with pytest.raises(RunFailedError, match="'pay'") as info:
        await lives.finish(Team("t", [a, pay("fail"), b]), [])
    assert isinstance(info.value.__cause__, CallInDoubtError)
    async with make_runtime() as rt:
        rt.register(Team("t", [a, pay("ask"), b]))
        await rt.resume("r1")
        await until_status(rt, "r1", "waiting")
        with pytest.raises(RunWaitingError):
            await rt.run(Team("t", [a, pay("ask"), b]), [], id="r1", until="settled")
        await rt.answer("r1", {"done": True, "result": ["a", "paid by hand"]})
        assert await rt.run(Team("t", [a, pay("ask"), b]), [], id="r1") == ["a", "paid by hand", "b"]
    assert paid == ["fail"]


async def test_a_child_goes_on_where_it_was(lives: Lives) -> None:
    once, done = Once(), list[str]()

    async def work(what: str) -> str:
        done.append(what)
        return what

    @flow
    async def inner(data: list[str]) -> list[str]:
        first = await call(work, "first")
        await once.wait()
        return [*data, first, await call(work, "second")]

    team = Team("t", [a, inner, b])
    await lives.cut(team, [], at=once.reached)
    assert await lives.finish(team, []) == ["a", "first", "second", "b"]
    assert done == ["first", "second"]


@dataclass
class Draft:
    topic: str
    lines: list[str] = field(default_factory=list)


async def test_typed_data_comes_back_as_its_type_after_a_crash(lives: Lives) -> None:
    once, seen = Once(), list[Any]()

    def first(data: Draft) -> None:
        data.lines.append("first")

    async def second(data: Draft) -> None:
        seen.append((type(data), list(data.lines)))
        await once.wait()
        data.lines.append("second")

    await lives.cut(Team("t", [first, second]), {"topic": "tides"}, at=once.reached)
    assert await lives.finish(Team("t", [first, second]), {"topic": "tides"}) == Draft("tides", ["first", "second"])
    assert seen == [(Draft, ["first"])] * 2


# Changed in between


async def test_what_cannot_be_stored_is_told_with_its_path_before_an_edge_is_followed(
    make_runtime: MakeRuntime,
) -> None:
    def wrong(data: Any) -> dict[str, Any]:
        return {"lock": threading.Lock()}

    async with make_runtime() as rt:
        team = Team("t", [wrong, b], Strategy.GRAPH, edges={wrong: (b, lambda data: True)})
        with pytest.raises(RunFailedError, match=r"state\.lock: .*lock cannot be stored"):
            await rt.run(team, [], id="r1")


async def test_a_run_that_began_as_a_pipeline_goes_on_as_a_team_of_the_same_steps(make_runtime: MakeRuntime) -> None:
    broken = [True]

    def fragile(data: list[str]) -> list[str]:
        if broken:
            raise ConnectionError("down")
        return [*data, "fragile"]

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(Pipeline("t", [a, fragile, b]), [], id="r1")
    broken.clear()
    async with make_runtime() as rt:
        rt.register(Team("t", [a, fragile, b], max_turns=3, policy=CheckpointPolicy(every_n_steps=1)))
        assert await (await rt.resume("r1")).result() == ["a", "fragile", "b"]


async def test_a_strategy_that_was_changed_while_the_selector_was_asked_is_a_clear_error(
    make_runtime: MakeRuntime,
) -> None:
    team = Team("t", [a], Strategy.SELECTOR, selector=lambda data: "nobody")
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(team, [], id="r1")
    async with make_runtime() as rt:
        rt.register(Team("t", [a]))
        with pytest.raises(StepMissingError, match=r"'\(selector\)', which flow 't' does not have"):
            await rt.resume("r1")


# Cancel


async def test_a_cancel_stops_the_member_that_is_under_way(make_runtime: MakeRuntime) -> None:
    inside, ended, turns = asyncio.Event(), asyncio.Event(), list[str]()

    async def works(data: list[str]) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            turns.append("stopped")
            ended.set()

    def never(data: list[str]) -> None:
        turns.append("never")

    async with make_runtime() as rt:
        handle = await rt.start(Team("t", [a, works, never]), [], id="r1")
        await inside.wait()
        await handle.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await handle.result()
        async with asyncio.timeout(20):
            await ended.wait()
        last = await rt.load("r1")
    assert turns == ["stopped"]
    assert last is not None
    assert last.state == ["a"]


async def test_a_cancel_reaches_a_member_that_is_a_run_of_its_own(make_runtime: MakeRuntime) -> None:
    inside, stopped = asyncio.Event(), asyncio.Event()

    @flow
    async def inner(data: list[str]) -> list[str]:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return data

    async with make_runtime() as rt:
        handle = await rt.start(Team("t", [inner]), [], id="r1")
        await inside.wait()
        await handle.cancel()
        with pytest.raises(RunCancelledError):
            await handle.result()
        async with asyncio.timeout(20):
            await stopped.wait()
        [child] = [run async for run in rt.list(parent="r1")]
        assert (await until_status(rt, child.id, "cancelled")).status == "cancelled"


async def test_a_pause_lets_the_turn_finish_and_a_resume_goes_on_with_the_next(make_runtime: MakeRuntime) -> None:
    inside, gate, seen = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow(data: list[str]) -> list[str]:
        inside.set()
        await gate.wait()
        return [*data, "slow"]

    def on_event(event: Event) -> None:
        seen.append(event.type)

    async with make_runtime(on_event=on_event) as rt:
        team = Team("t", [a, slow, b])
        handle = await rt.start(team, [], id="r1")
        await inside.wait()
        await handle.pause()
        gate.set()
        run = await until_status(rt, "r1", "paused")
        assert (run.step, run.next) == (2, "b")
        assert await (await rt.resume("r1")).result() == ["a", "slow", "b"]
    assert seen.count("paused") == seen.count("resumed") == 1
