"""What journaled calls cost in commits, and which of them are kept for how long."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import Again, CheckpointPolicy, Pipeline, blocking, call, flow
from holdfast.errors import RunPausedError
from holdfast.testing import ManualClock


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class Tool:
    def __init__(self) -> None:
        self.effects: Counter[Any] = Counter()

    async def use(self, what: Any) -> Any:
        self.effects[what] += 1
        return what

    def use_def(self, what: Any) -> Any:
        self.effects[what] += 1
        return what


# Commits


async def _commits(lives: Lives, body: Any, run: str) -> int:
    async with lives.runtime() as rt:
        assert lives.store is not None
        before = lives.store.commits
        await rt.run(body, id=run)
        return lives.store.commits - before


async def test_a_hundred_calls_that_end_together_share_their_commits(lives: Lives) -> None:
    tool = Tool()

    @flow
    async def fan() -> int:
        return len(await asyncio.gather(*(call(tool.use, n) for n in range(100))))

    assert await _commits(lives, fan, "r1") < 20
    assert tool.effects.total() == 100


async def test_a_hundred_branches_share_their_commits(lives: Lives) -> None:
    tool = Tool()

    async def branch(n: int) -> None:
        await asyncio.sleep(0)
        for turn in range(3):
            await call(tool.use, (n, turn))

    @flow
    async def fan() -> None:
        await asyncio.gather(*(branch(n) for n in range(100)))

    assert await _commits(lives, fan, "r1") < 20
    assert tool.effects.total() == 300


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_calls_one_after_the_other_are_one_commit_each(lives: Lives, kind: str) -> None:
    tool = Tool()

    def body_of(calls: int) -> Any:
        @flow(name="async")
        async def body() -> None:
            for n in range(calls):
                await call(tool.use, n)

        @flow(name="def")
        def def_body() -> None:
            for n in range(calls):
                blocking.call(tool.use_def, n)

        return body if kind == "async" else def_body

    costs = [await _commits(lives, body_of(calls), f"r{calls}") for calls in (0, 1, 10)]
    assert [cost - costs[0] for cost in costs] == [0, 1, 10]


async def test_an_intent_costs_one_commit_more(lives: Lives) -> None:
    tool = Tool()

    @flow
    async def retry() -> None:
        await call(tool.use, 1)

    @flow
    async def fail() -> None:
        await call.options(on_doubt="fail")(tool.use, 1)

    assert await _commits(lives, fail, "r2") == await _commits(lives, retry, "r1") + 1


async def test_a_call_that_is_found_costs_no_commit(lives: Lives) -> None:
    tool, once = Tool(), Once()

    @flow
    async def body() -> str:
        for n in range(50):
            await call(tool.use, n)
        await asyncio.gather(*(call(tool.use, n) for n in range(50, 60)))
        await once.wait()
        return "done"

    @flow
    async def empty() -> None: ...

    nothing = await _commits(lives, empty, "r0")
    await lives.cut(body, at=once.reached)
    assert await _commits(lives, body, "r1") <= nothing
    assert set(tool.effects.values()) == {1}


# Policies


async def test_calls_of_steps_whose_save_was_skipped_are_found_again(lives: Lives) -> None:
    tool, once = Tool(), Once()

    async def first(state: list[str]) -> list[str]:
        return [*state, await call(tool.use, "a"), await call(tool.use, "b")]

    async def second(state: list[str]) -> list[str]:
        return [*state, await call(tool.use, "c")]

    async def third(state: list[str]) -> list[str]:
        out = [*state, await call(tool.use, "d")]
        await once.wait()
        return out

    async def fourth(state: list[str]) -> list[str]:
        return [*state, await call(tool.use, "e")]

    policy = CheckpointPolicy(every_n_steps=10)
    pipeline = Pipeline("sparse", [first, second, third, fourth], policy=policy)
    await lives.cut(pipeline, [], at=once.reached)
    # Cut off again before the last step: what is carried past a pause is still found.
    once.reached.clear()
    await lives.cut(pipeline, [], at=once.reached)
    assert await lives.finish(pipeline, []) == ["a", "b", "c", "d", "e"]
    assert set(tool.effects.values()) == {1}


async def test_a_checkpoint_carries_the_calls_of_later_steps(lives: Lives) -> None:
    """A pause saves an earlier step than the one whose calls are in the log already."""
    tool, once, gate, inside = Tool(), Once(), asyncio.Event(), asyncio.Event()

    async def first(state: list[str]) -> list[str]:
        inside.set()
        if once.reached.is_set():
            await gate.wait()
        return [*state, await call(tool.use, "a")]

    async def second(state: list[str]) -> list[str]:
        out = [*state, await call(tool.use, "b")]
        await once.wait()
        return out

    pipeline = Pipeline("sparse", [first, second], policy=CheckpointPolicy(every_n_steps=10))
    await lives.cut(pipeline, [], at=once.reached)
    inside.clear()
    async with lives.runtime() as rt:
        rt.register(pipeline)
        handle = await rt.resume("r1")
        await inside.wait()
        await handle.pause()
        gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
    async with lives.runtime() as rt:
        rt.register(pipeline)
        assert await (await rt.resume("r1")).result() == ["a", "b"]
    assert tool.effects == {"a": 1, "b": 1}


async def test_keeping_few_checkpoints_keeps_the_journal_of_the_step_under_way(lives: Lives) -> None:
    tool, once = Tool(), Once()

    async def work(n: int, state: list[int]) -> list[int]:
        out = [*state[-3:], await call(tool.use, 2 * n), await call(tool.use, 2 * n + 1)]
        if n == 7:
            await once.wait()
        return out

    pipeline = Pipeline("kept", work, total=10, policy=CheckpointPolicy(keep_latest=2))
    await lives.cut(pipeline, [], at=once.reached)
    assert await lives.finish(pipeline, []) == [15, 16, 17, 18, 19]
    assert tool.effects == dict.fromkeys(range(20), 1)


async def test_a_flow_that_goes_round_and_keeps_few_checkpoints_drops_its_old_calls(lives: Lives) -> None:
    tool = Tool()

    @flow(policy=CheckpointPolicy(keep_latest=2))
    async def rounds(n: int) -> Any:
        for i in range(5):
            await call(tool.use, (n, i))
        return Again(n + 1) if n < 40 else "done"

    assert await lives.finish(rounds, 0) == "done"
    assert set(tool.effects.values()) == {1}
    async with lives.runtime() as rt:
        assert len([line async for line in rt.ledger("r1")]) < 100
