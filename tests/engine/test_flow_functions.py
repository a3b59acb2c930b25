"""Plain functions as flows: what is kept, how they go round, stop, rewind and fork, and what late code can do."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import (
    Again,
    Pipeline,
    RetryPolicy,
    RunStatus,
    blocking,
    call,
    current_run,
    flow,
)
from holdfast.errors import (
    NotACheckpointError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunPausedError,
    UsageError,
)
from holdfast.testing import ManualClock

AT_ONCE = RetryPolicy(attempts=3, first_delay=0, jitter=0)


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class Tool:
    def __init__(self) -> None:
        self.effects: Counter[Any] = Counter()
        self.keys: list[str] = []

    async def use(self, what: Any) -> Any:
        self.effects[what] += 1
        self.keys.append(current_run().idempotency_key)
        return what

    def use_def(self, what: Any) -> Any:
        self.effects[what] += 1
        return what


# What it takes and gives


@dataclass
class Question:
    text: str
    depth: int = 1


class Answer(pydantic.BaseModel):
    text: str


async def test_a_flow_takes_its_declared_input_and_gives_its_declared_result(lives: Lives) -> None:
    @flow
    async def research(question: Question) -> Answer:
        return Answer(text=f"{question.text} {question.depth}")

    assert await lives.finish(research, {"text": "why"}) == Answer(text="why 1")
    async with lives.runtime() as rt:
        assert await rt.run(research, {"text": "why"}, id="r1") == Answer(text="why 1")
        assert await rt.run(research, Question("what", 2), id="r2") == Answer(text="what 2")


async def test_ifs_loops_and_try_are_plain_python(lives: Lives) -> None:
    tool, once = Tool(), Once()

    @flow
    async def body(n: int) -> list[int]:
        out = []
        for i in range(n):
            if i % 2:
                continue
            try:
                out.append(await call(tool.use, i))
                if i == 4:
                    raise LookupError
            except LookupError:
                await once.wait()
                out.append(-1)
        return out

    await lives.cut(body, 7, at=once.reached)
    assert await lives.finish(body, 7) == [0, 2, 4, -1, 6]
    assert set(tool.effects.values()) == {1}


def test_what_is_no_flow_function_is_refused_when_declared() -> None:
    with pytest.raises(UsageError, match="one input"):

        @flow
        async def two(a: int, b: int) -> None: ...

    with pytest.raises(UsageError, match="function"):
        flow(5)  # type: ignore[call-overload]


@pytest.mark.parametrize("given", [None, 5, {"a": [1]}, "text"])
async def test_a_flow_of_anything_takes_anything(lives: Lives, given: Any) -> None:
    @flow
    async def echo(anything: Any) -> Any:
        return [anything]

    async with lives.runtime() as rt:
        assert await rt.run(echo, given, id="r1") == [given]


async def test_a_flow_without_parameters_takes_no_input(lives: Lives) -> None:
    @flow
    async def none() -> str:
        return "fine"

    assert await lives.finish(none) == "fine"
    async with lives.runtime() as rt:
        with pytest.raises(UsageError, match="no input"):
            await rt.run(none, 5, id="r2")


async def test_the_body_works_on_a_copy_of_its_input(lives: Lives) -> None:
    once = Once()

    @flow
    async def greedy(words: list[str]) -> list[str]:
        words.append("mine")
        await once.wait()
        return words

    await lives.cut(greedy, ["a"], at=once.reached)
    assert await lives.finish(greedy, ["a"]) == ["a", "mine"]


async def test_the_run_is_known_inside_its_body_and_calls(lives: Lives, clock: ManualClock) -> None:
    async def inside() -> list[Any]:
        run = current_run()
        return [run.id, run.flow, run.attempt, run.metadata, run.idempotency_key]

    @flow(timeout=60)
    async def body() -> list[Any]:
        run = current_run()
        assert run.deadline is not None
        return [await inside(), await call(inside), await call(inside), run.deadline.timestamp() - clock.now()]

    async with lives.runtime() as rt:
        own, first, second, left = await rt.run(body, id="r1", metadata={"caller": "u7"})
    assert own[:4] == ["r1", "body", 1, {"caller": "u7"}] == first[:4]
    assert len({own[4], first[4], second[4]}) == 3
    assert left == 60


# Again


async def test_a_body_that_goes_round_begins_each_round_with_an_empty_journal(lives: Lives) -> None:
    tool, once = Tool(), Once()

    @flow
    async def rounds(n: int) -> Any:
        await call(tool.use, n)
        if n == 3:
            await once.wait()
        return Again(n + 1) if n < 5 else f"done at {n}"

    await lives.cut(rounds, 0, at=once.reached)
    assert await lives.finish(rounds, 0) == "done at 5"
    assert tool.effects == dict.fromkeys(range(6), 1)
    assert len(set(tool.keys)) == 6
    assert await lives.events("calls_unasked") == []
    assert await lives.events("call_changed") == []


async def test_taking_up_a_body_that_goes_round_reads_no_more_the_longer_it_has_run(lives: Lives) -> None:
    async def tick(n: int) -> str:
        return "x" * 50

    read: list[int] = []
    for rounds in (5, 40):
        once, run = Once(), f"r{rounds}"

        @flow(name="loop")
        async def loop(n: int) -> Any:
            for i in range(20):
                await call(tick, i)
            if n == rounds:  # noqa: B023
                await once.wait()  # noqa: B023
                return "done"
            return Again(n + 1)

        async with lives.runtime() as rt:
            assert lives.store is not None
            await rt.start(loop, 0, id=run)
            await once.reached.wait()
            await asyncio.gather(rt.close(), rt.close())
        async with lives.runtime() as rt:
            assert lives.store is not None
            claim_runs = lives.store.claim_runs

            async def counted(*args: Any, claim_runs: Any = claim_runs, **kwargs: Any) -> Any:
                claims = await claim_runs(*args, **kwargs)
                read.extend(len(claim.entries) for claim in claims)
                return claims

            lives.store.claim_runs = counted  # type: ignore[method-assign]
            assert await rt.run(loop, 0, id=run) == "done"
    assert len(read) == 2
    assert max(read) < 120  # the segment is at most a few rounds of 21 entries


async def test_again_with_an_input_that_does_not_fit_fails_the_run(lives: Lives) -> None:
    @flow
    async def wrong(question: Question) -> Any:
        return Again({"nothing": 1})

    with pytest.raises(RunFailedError, match="Question"):
        await lives.finish(wrong, Question("a"))


async def test_a_def_body_goes_round_too(lives: Lives) -> None:
    tool = Tool()

    @flow
    def rounds(n: int) -> Any:
        blocking.call(tool.use_def, n)
        return Again(n + 1) if n < 3 else n

    assert await lives.finish(rounds, 0) == 3
    assert tool.effects == dict.fromkeys(range(4), 1)


# Pause, cancel, shutdown


async def test_a_pause_acts_between_two_calls_of_a_flow(lives: Lives) -> None:
    tool, inside, gate = Tool(), asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        inside.set()
        await gate.wait()
        return "slow"

    @flow
    async def body() -> list[str]:
        return [await call(tool.use, "a"), await call(slow), await call(tool.use, "b")]

    async with lives.runtime() as rt:
        handle = await rt.start(body, id="r1")
        await inside.wait()
        await handle.pause()
        gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
        assert tool.effects == {"a": 1}
        handle = await rt.resume("r1")
        assert await handle.result() == ["a", "slow", "b"]
    assert tool.effects == {"a": 1, "b": 1}
    async with lives.runtime() as rt:
        assert [line.name async for line in rt.ledger("r1")] == ["use", "slow", "use"]


async def test_a_pause_acts_at_the_end_of_a_pipelines_step(lives: Lives) -> None:
    tool, inside, gate = Tool(), asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        inside.set()
        await gate.wait()
        return "slow"

    async def first(state: list[str]) -> list[str]:
        return [await call(slow), await call(tool.use, "a")]

    async def second(state: list[str]) -> list[str]:
        return [*state, await call(tool.use, "b")]

    async with lives.runtime() as rt:
        handle = await rt.start(Pipeline("p", [first, second]), [], id="r1")
        await inside.wait()
        await handle.pause()
        gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
        assert tool.effects == {"a": 1}
        assert await (await rt.resume("r1")).result() == ["slow", "a", "b"]
    assert tool.effects == {"a": 1, "b": 1}


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_shutdown_lets_the_call_under_way_finish_and_begins_no_other(lives: Lives, kind: str) -> None:
    tool, inside, gate = Tool(), asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        tool.effects["slow"] += 1
        inside.set()
        await gate.wait()
        return "slow"

    @flow(name="body")
    async def body() -> list[str]:
        return [await call(slow), await call(tool.use, "after")]

    @flow(name="body")
    def def_body() -> list[str]:
        return [blocking.call(slow), blocking.call(tool.use_def, "after")]

    chosen = body if kind == "async" else def_body
    async with lives.runtime() as rt:
        running = asyncio.ensure_future(rt.run(chosen, id="r1"))
        await inside.wait()
        closing = asyncio.ensure_future(rt.close())
        await asyncio.sleep(0)
        gate.set()
        await closing
        with pytest.raises(RunInterruptedError):
            await running
    assert tool.effects == {"slow": 1}
    assert await lives.finish(chosen) == ["slow", "after"]
    assert tool.effects == {"slow": 1, "after": 1}


async def test_a_cancel_inside_a_body_is_final_and_nothing_more_is_begun(lives: Lives) -> None:
    tool, inside = Tool(), asyncio.Event()

    @flow
    async def body() -> None:
        await call(tool.use, "a")
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await call(tool.use, "late")

    async with lives.runtime() as rt:
        handle = await rt.start(body, id="r1")
        await inside.wait()
        await handle.cancel("enough")
        with pytest.raises(RunCancelledError):
            await handle.result()
        run = await rt.get("r1")
        assert run is not None
        assert run.status is RunStatus.CANCELLED
    assert tool.effects == {"a": 1}


async def test_a_cancel_ends_a_def_body_at_its_next_call(lives: Lives) -> None:
    tool, inside, release = Tool(), asyncio.Event(), threading.Event()
    loop, late = asyncio.get_running_loop(), []

    def slow() -> None:
        loop.call_soon_threadsafe(inside.set)
        release.wait()

    @flow
    def body() -> str:
        blocking.call(slow)
        try:
            blocking.call(tool.use_def, "late")
        except BaseException as error:
            late.append(type(error).__name__)
            raise
        return "?"

    async with lives.runtime() as rt:
        handle = await rt.start(body, id="r1")
        await inside.wait()
        await handle.cancel()
        release.set()
        with pytest.raises(RunCancelledError):
            await handle.result()
    assert tool.effects == {}
    assert late in ([], ["Suspended"])  # the call that was under way may be where it unwinds


async def test_a_call_given_up_while_its_result_is_written_is_what_the_body_saw(lives: Lives) -> None:
    tool, once, seen = Tool(), Once(), []

    async def quick() -> str:
        task = tasks[-1]
        asyncio.get_running_loop().call_soon(task.cancel)  # comes when the function has returned
        return await tool.use("quick")  # type: ignore[no-any-return]

    tasks: list[asyncio.Task[str]] = []

    @flow
    async def body() -> str:
        tasks.append(asyncio.create_task(call(quick)))
        try:
            seen.append(await tasks[-1])
        except (asyncio.CancelledError, TimeoutError):
            seen.append("given up")
        await once.wait()
        return str(seen[-1])

    await lives.cut(body, at=once.reached)
    await lives.finish(body)
    assert seen[0] == seen[1]
    assert tool.effects == {"quick": 1}


# Code that does not let go


async def test_a_body_that_swallows_its_timeout_can_do_no_more_and_its_result_is_refused(lives: Lives) -> None:
    tool, late, attempts = Tool(), [], Counter[str]()
    ended = asyncio.Event()

    @flow(timeout=0.02, retry=AT_ONCE)
    async def stubborn() -> str:
        attempts["n"] += 1
        if attempts["n"] > 1:
            return "the second attempt"
        for _ in range(3):
            try:
                await (asyncio.Event().wait() if not late else call(tool.use, "late"))
            except BaseException as error:
                late.append(type(error).__name__)
        ended.set()
        return "too late"

    assert await lives.finish(stubborn) == "the second attempt"
    assert ended.is_set()
    assert late == ["CancelledError"] * 3
    assert tool.effects == {}


async def test_a_def_body_that_swallows_being_let_go_can_do_no_more(lives: Lives) -> None:
    tool, late, once = Tool(), [], threading.Event()
    ended = threading.Event()

    @flow
    def stubborn() -> str:
        if once.is_set():
            return str(blocking.receive("go"))
        once.set()
        for _ in range(3):
            try:
                blocking.receive("go") if not late else blocking.call(tool.use_def, "late")
            except BaseException as error:
                late.append(type(error).__name__)
        ended.set()
        return "too late"

    async with lives.runtime() as rt:
        handle = await rt.start(stubborn, id="r1")
        await asyncio.to_thread(ended.wait)
        while (run := await rt.get("r1")) is None or run.status is not RunStatus.WAITING:
            await asyncio.sleep(0.005)
        await rt.send("r1", "go", "on")
        assert await handle.result() == "on"
    assert late == ["Suspended"] * 3
    assert tool.effects == {}


async def test_a_body_that_swallows_cancellation_is_cancelled_all_the_same(lives: Lives) -> None:
    inside = asyncio.Event()

    @flow
    async def stubborn() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "I am not"

    async with lives.runtime() as rt:
        handle = await rt.start(stubborn, id="r1")
        await inside.wait()
        await handle.cancel()
        with pytest.raises(RunCancelledError):
            await handle.result()


# Rewind and fork


async def test_a_flow_is_rewound_to_the_entry_of_a_call(lives: Lives) -> None:
    tool = Tool()

    @flow
    async def body() -> list[str]:
        return [await call(tool.use, name) for name in "abcd"]

    async with lives.runtime() as rt:
        await rt.run(body, id="r1")
        lines = [line async for line in rt.ledger("r1")]
        keys = tool.keys.copy()
        tool.effects.clear()
        handle = await rt.rewind(f"r1@{lines[1].seq}")
        assert await handle.result() == ["a", "b", "c", "d"]
        assert tool.effects == {"c": 1, "d": 1}
        assert not set(tool.keys[4:]) & set(keys)


async def test_a_flow_is_forked_at_the_entry_of_a_call(lives: Lives) -> None:
    tool = Tool()

    @flow
    async def body() -> list[str]:
        return [await call(tool.use, name) for name in "abcd"]

    async with lives.runtime() as rt:
        await rt.run(body, id="r1")
        lines = [line async for line in rt.ledger("r1")]
        keys = tool.keys.copy()
        tool.effects.clear()
        handle = await rt.fork(f"r1@{lines[2].seq}", id="r2")
        assert await handle.result() == ["a", "b", "c", "d"]
        assert tool.effects == {"d": 1}
        assert not set(tool.keys[4:]) & set(keys)
        assert [line.seq async for line in rt.ledger("r1")] == [line.seq for line in lines]
        # And what was forked can be forked again.
        (line,) = [line async for line in rt.ledger("r2")]
        assert await (await rt.fork(f"r2@{line.seq}", id="r3")).result() == ["a", "b", "c", "d"]
    assert tool.effects == {"d": 1}


async def test_a_flow_that_went_round_is_rewound_to_a_call_of_its_round(lives: Lives) -> None:
    tool = Tool()

    @flow
    async def body(n: int) -> Any:
        out = [await call(tool.use, f"{n}a"), await call(tool.use, f"{n}b")]
        return Again(n + 1) if n < 2 else out

    async with lives.runtime() as rt:
        await rt.run(body, 0, id="r1")
        (line,) = [line async for line in rt.ledger("r1") if line.key == "1/use:1"]
        tool.effects.clear()
        assert await (await rt.rewind(f"r1@{line.seq}")).result() == ["2a", "2b"]
    assert tool.effects == {"1b": 1, "2a": 1, "2b": 1}


async def test_a_call_inside_a_pipelines_step_is_no_place_to_go_back_to(lives: Lives) -> None:
    tool = Tool()

    async def one(state: list[str]) -> list[str]:
        return [await call(tool.use, "a"), await call(tool.use, "b")]

    async with lives.runtime() as rt:
        await rt.run(Pipeline("p", [one, one_more]), [], id="r1")
        lines = [line async for line in rt.ledger("r1")]
        for verb in (rt.rewind, rt.fork):
            with pytest.raises(NotACheckpointError, match=r"r1@\d"):
                await verb(f"r1@{lines[0].seq}")


async def one_more(state: list[str]) -> list[str]:
    return [*state, "more"]


async def test_rewinding_to_the_start_makes_every_call_again(lives: Lives) -> None:
    tool = Tool()

    @flow
    async def body() -> list[str]:
        return [await call(tool.use, name) for name in "ab"]

    async with lives.runtime() as rt:
        await rt.run(body, id="r1")
        assert await (await rt.rewind("r1@1")).result() == ["a", "b"]
    assert tool.effects == {"a": 2, "b": 2}
    assert len(set(tool.keys)) == 4
