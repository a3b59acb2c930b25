"""progress(fraction, text): shown with the run while a step is under way, and by nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import CheckpointPolicy, Pipeline, Run, Runtime, ask, call, emit, flow, progress
from holdfast.errors import UsageError
from holdfast.testing import ManualClock
from watched import WatchedStore, kill


class Halt:
    """Where a body stands still until the test has looked."""

    def __init__(self) -> None:
        self.there, self.on = asyncio.Event(), asyncio.Event()

    async def here(self) -> None:
        await call(len, "")  # what was said before is written
        self.there.set()
        await self.on.wait()


async def shown(rt: Runtime, run: str = "r") -> tuple[float, str | None]:
    """What the run shows of its progress."""
    found = await rt.get(run)
    assert found is not None
    return found.progress, found.progress_text


async def test_a_flow_shows_the_fraction_and_the_text_it_gave_last(make_runtime: MakeRuntime) -> None:
    halt = Halt()

    @flow
    async def body() -> str:
        progress(0.1, "reading")
        await progress(0.25, "writing")
        await halt.here()
        return "done"

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r")
        await halt.there.wait()
        assert await shown(rt) == (25.0, "writing")
        assert [run.progress async for run in rt.list()] == [25.0]
        halt.on.set()
        await handle.result()
        assert await shown(rt) == (100.0, None)
        said = [e.data async for e in rt.events("r") if e.type == "emitted"]
        assert said[1] == {"name": "progress", "data": {"fraction": 0.25, "text": "writing"}}


async def test_a_pipeline_shows_its_finished_steps_and_the_fraction_of_the_next(make_runtime: MakeRuntime) -> None:
    halt = Halt()

    def first(state: int) -> int:
        progress(0.9)
        return state + 1

    async def second(state: int) -> int:
        progress(0.5, "half of it")
        await halt.here()
        return state + 1

    async def third(state: int) -> int:
        return state

    async def fourth(state: int) -> int:
        return state

    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("p", [first, second, third, fourth]), 0, id="r")
        await halt.there.wait()
        assert await shown(rt) == (37.5, "half of it")
        halt.on.set()
        await handle.result()
        assert await shown(rt) == (100.0, None)
        async for point in rt.checkpoints("r"):
            assert point.step <= 4


async def test_a_finished_step_forgets_what_it_said(make_runtime: MakeRuntime) -> None:
    halt = Halt()

    async def first(state: int) -> int:
        await progress(0.9, "nearly")
        await call(len, "")
        return state

    async def second(state: int) -> int:
        await halt.here()
        return state

    async with make_runtime() as rt:
        await rt.start(Pipeline("p", [first, second]), 0, id="r")
        await halt.there.wait()
        assert await shown(rt) == (50.0, None)
        halt.on.set()


async def test_steps_that_are_finished_but_not_saved_count(make_runtime: MakeRuntime) -> None:
    halt = Halt()

    async def first(state: int) -> int:
        return state

    async def second(state: int) -> int:
        progress(0.5)
        await halt.here()
        return state

    policy = CheckpointPolicy(every_n_steps=10)
    async with make_runtime() as rt:
        await rt.start(Pipeline("p", [first, second], policy=policy), 0, id="r")
        await halt.there.wait()
        assert await shown(rt) == (75.0, None)
        run = await rt.get("r")
        assert run is not None
        assert run.step == 0, "a crash would begin again there"
        halt.on.set()


async def _waiting(rt: Runtime) -> Run:
    async with asyncio.timeout(10):
        while (run := await rt.get("r")) is None or run.status != "waiting":
            await asyncio.sleep(0.01)
    return run


async def test_a_run_that_waits_paused_or_was_cancelled_shows_how_far_it_was(make_runtime: MakeRuntime) -> None:
    @flow
    async def body() -> Any:
        progress(0.5, "asking")
        return await ask("go on?")

    async with make_runtime() as rt:
        await rt.start(body, id="r")
        assert (await _waiting(rt)).progress == 50.0
        await rt.pause("r")
        assert await shown(rt) == (50.0, "asking")
        await rt.cancel("r")
        assert await shown(rt) == (50.0, "asking")


async def test_what_was_said_inside_a_finished_call_outlives_a_crash(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    halts = [Halt(), Halt()]
    lives = 0

    async def inside() -> None:
        progress(0.5, "fetched")

    @flow
    async def body() -> None:
        nonlocal lives
        lives += 1
        await call(inside)
        await call.options(key=f"life-{lives}")(len, "")
        await halts[lives - 1].here()

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(body, id="r")
        await halts[0].there.wait()
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        assert await shown(rt) == (50.0, "fetched")
        rt.register(body)
        handle = await rt.resume("r")
        await halts[1].there.wait()
        assert await shown(rt) == (50.0, "fetched"), "though nobody says it again"
        halts[1].on.set()
        await handle.result()


async def test_a_rewound_run_begins_again_at_its_checkpoint(make_runtime: MakeRuntime) -> None:
    halts = [Halt(), Halt()]
    lives = 0

    @flow
    async def body() -> None:
        nonlocal lives
        lives += 1
        if lives == 1:
            progress(0.5)
        await halts[lives - 1].here()

    async with make_runtime() as rt:
        halts[0].on.set()
        await rt.run(body, id="r")
        handle = await rt.rewind("r@1")
        await halts[1].there.wait()
        assert await shown(rt) == (0.0, None)
        halts[1].on.set()
        await handle.result()


@pytest.mark.parametrize("data", [None, 0.5, {"fraction": 7, "text": None}, {"fraction": 0.5}, {"text": "x"}])
async def test_a_chunk_of_that_name_that_says_nothing_of_the_kind_changes_nothing(
    make_runtime: MakeRuntime, data: Any
) -> None:
    halt = Halt()

    @flow
    async def body() -> None:
        emit("progress", data)
        await halt.here()

    async with make_runtime() as rt:
        await rt.start(body, id="r")
        await halt.there.wait()
        assert await shown(rt) == (0.0, None)
        halt.on.set()


async def test_a_long_text_is_kept_in_the_stream_and_shown_short(make_runtime: MakeRuntime) -> None:
    halt = Halt()

    @flow
    async def body() -> None:
        progress(0.5, "x" * 10_000)
        await halt.here()

    async with make_runtime() as rt:
        await rt.start(body, id="r")
        await halt.there.wait()
        assert await shown(rt) == (50.0, "x" * 100)
        (said,) = [e.data["data"] async for e in rt.events("r") if e.type == "emitted"]
        assert said["text"] == "x" * 10_000
        halt.on.set()


@pytest.mark.parametrize("wrong", [(-0.1,), (1.1,), (float("nan"),), ("half",), (True,), (0.5, 7)])
def test_a_fraction_goes_from_0_to_1_and_a_text_is_a_text(wrong: Any) -> None:
    with pytest.raises(UsageError, match="progress"):
        progress(*wrong)
