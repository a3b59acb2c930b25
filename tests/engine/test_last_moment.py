"""What others want of a run in the last moment before it ends: whoever was told that it holds was told the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Pipeline, RetryPolicy, Runtime, receive, step
from holdfast.errors import RunCancelledError, RunFailedError, VerbRefusedError

MakeRuntime = Callable[..., Runtime]


class Late:
    """A run whose last step does something to it by way of another runtime, and nobody brings the mail in time."""

    def __init__(self, make_runtime: MakeRuntime) -> None:
        self.make_runtime = make_runtime

    async def run(self, late: Callable[[Runtime], Any], *, fails: bool = False, **settings: Any) -> Any:
        async with self.make_runtime() as rt, self.make_runtime() as other:

            @step(retry=RetryPolicy(attempts=1))
            async def last(state: int) -> int:
                rt._now().engine.postman.stop()
                await late(other)
                if fails:
                    raise ValueError("no")
                return state + 1

            return await rt.run(Pipeline("late", [last], **settings), 1, id="r1")


@pytest.fixture
def late(make_runtime: MakeRuntime) -> Late:
    return Late(make_runtime)


@pytest.mark.parametrize("fails", [False, True], ids=["that succeeds", "that fails"])
@pytest.mark.parametrize("on_finish", ["keep", "delete"])
async def test_a_cancel_that_was_accepted_during_the_last_step_is_final(
    late: Late, make_runtime: MakeRuntime, fails: bool, on_finish: Any
) -> None:
    with pytest.raises(RunCancelledError, match="too dear"):
        await late.run(
            lambda rt: rt.cancel("r1", "too dear"), fails=fails, policy=CheckpointPolicy(on_finish=on_finish)
        )
    async with make_runtime() as rt:
        run = await rt.get("r1")
        assert run is not None
        assert (run.status, run.step) == ("cancelled", 0 if fails else 1)
        with pytest.raises(VerbRefusedError):
            await rt.resume("r1")


async def test_a_pause_or_a_message_does_not_keep_a_run_from_its_end(late: Late, make_runtime: MakeRuntime) -> None:
    async def both(rt: Runtime) -> None:
        await rt.send("r1", "news", {"x": 1})
        await rt.pause("r1")

    assert await late.run(both) == 2
    async with make_runtime() as rt:
        assert await rt.run(Pipeline("late", [lambda state: state]), 1, id="r1") == 2


async def test_a_run_that_fails_in_spite_of_a_message_can_be_gone_on_with_and_has_it(
    late: Late, make_runtime: MakeRuntime
) -> None:
    with pytest.raises(RunFailedError):
        await late.run(lambda rt: rt.send("r1", "news", "x"), fails=True)

    async def last(state: int) -> Any:
        return await receive("news")

    async with make_runtime() as rt:
        rt.register(Pipeline("late", [last]))
        handle = await rt.resume("r1")
        assert await handle.result() == "x"


async def test_of_a_cancel_and_an_end_at_once_one_wins_and_both_are_told(make_runtime: MakeRuntime) -> None:
    async def pass_on(state: int) -> int:
        return state

    flow = Pipeline("quick", [pass_on])

    async def end(rt: Runtime, run: str) -> bool:
        try:
            await rt.run(flow, 1, id=run)
        except RunCancelledError:
            return False
        return True

    async def cancelled(rt: Runtime, run: str) -> bool:
        while await rt.get(run) is None:
            await asyncio.sleep(0)
        try:
            await rt.cancel(run)
        except VerbRefusedError:
            return False
        return True

    async with make_runtime() as rt, make_runtime() as other:
        for n in range(30):
            ended, was_cancelled = await asyncio.gather(end(rt, f"r{n}"), cancelled(other, f"r{n}"))
            assert ended is not was_cancelled
