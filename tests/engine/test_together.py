"""Runs whose commits share a batch: each is told what became of its own, and stays within reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Pipeline, RunHandle, Runtime, step
from holdfast.engine.engine import Engine
from holdfast.engine.live import LiveRun
from holdfast.errors import RunCancelledError, RunExistsError

MakeRuntime = Callable[..., Runtime]


async def add(state: list[int]) -> list[int]:
    return [*state, len(state)]


ADDING = Pipeline("adding", [add])


async def hanging(rt: Runtime, count: int) -> list[RunHandle[Any]]:
    """So many runs that have saved their first steps together and hang in the second."""
    inside = asyncio.Semaphore(0)

    async def hang(state: list[int]) -> None:
        inside.release()
        await asyncio.Event().wait()

    flow = Pipeline("hanging", [add, hang])
    handles = await asyncio.gather(*(rt.start(flow, [], id=f"hanging-{k}") for k in range(count)))
    for _ in handles:
        await inside.acquire()
    return handles


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_of_runs_started_at_once_only_the_one_whose_id_is_taken_is_refused(
    make_runtime: MakeRuntime, taken: int
) -> None:
    async with make_runtime(grace=0.0) as rt:
        await rt.run(ADDING, [], id=f"r{taken}")
        await hanging(rt, 2)  # where others are live, nobody writes alone
        started = await asyncio.gather(*(rt.start(ADDING, [], id=f"r{k}") for k in range(3)), return_exceptions=True)
        refused = started.pop(taken)
        assert isinstance(refused, RunExistsError)
        assert refused.run_id == f"r{taken}"
        handles: list[Any] = started
        assert [await handle.result() for handle in handles] == [[0], [0]]


async def test_a_cancel_from_elsewhere_reaches_runs_that_saved_their_last_steps_together(
    make_runtime: MakeRuntime,
) -> None:
    async with make_runtime() as rt, make_runtime() as other:
        handles = await hanging(rt, 3)
        for handle in handles:
            await other.cancel(handle.id)
        for handle in handles:
            with pytest.raises(RunCancelledError):
                await asyncio.wait_for(handle.result(), 30)


async def test_the_objects_of_a_live_run_have_all_their_attributes_from_the_beginning(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What many objects of a class get only later takes each of them a dict of its own, and slows every look at it."""
    made: list[tuple[object, set[str]]] = []
    admit = Engine.admit

    def noting(engine: Engine, *given: Any, **known: Any) -> LiveRun:
        live = admit(engine, *given, **known)
        runner = live.runner
        made.extend((part, set(vars(part))) for part in (runner, runner.saving, runner.writer))
        return live

    monkeypatch.setattr(Engine, "admit", noting)
    async with make_runtime() as rt:
        twice = Pipeline("twice", [add, step(name="again")(add)])
        await asyncio.gather(rt.run(twice, []), rt.run(twice, []))
    assert len(made) == 6
    assert [set(vars(part)) - before for part, before in made] == [set()] * 6
