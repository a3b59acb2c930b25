"""Sleep: once, never early, across restarts and clock jumps, and without a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Pipeline, Runtime, ask, call, flow, sleep
from holdfast.errors import UsageError
from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock
from waiting import until_event, until_status
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


def sleeper(until: Any, woken: list[float], clock: ManualClock) -> Any:
    """A flow that sleeps and notes when it woke."""

    @flow(name="sleeper")
    async def body() -> str:
        await sleep(until)
        woken.append(clock.now())
        return "awake"

    return body


@pytest.mark.parametrize("kind", ["seconds", "timedelta", "datetime"])
async def test_a_sleep_ends_when_its_time_has_come_and_not_before(
    make_runtime: MakeRuntime, clock: ManualClock, kind: str
) -> None:
    start, woken = clock.now(), list[float]()
    until = {
        "seconds": 100,
        "timedelta": timedelta(seconds=100),
        "datetime": datetime.fromtimestamp(start + 100, UTC),
    }[kind]
    async with make_runtime() as rt:
        handle = await rt.start(sleeper(until, woken, clock), id="r1")
        run = await until_status(rt, "r1", "waiting")
        assert run.waiting_for is not None
        assert run.waiting_for.startswith("the time ")
        clock.advance(99)
        await rt._now().waker._look()
        assert (woken, (await until_status(rt, "r1", "waiting")).status) == ([], "waiting")
        clock.advance(1)
        assert await handle.result() == "awake"
        assert woken == [start + 100]


async def test_a_sleep_of_nothing_and_one_until_a_time_that_is_past_end_at_once(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @flow
    async def body() -> str:
        await sleep(0)
        await sleep(timedelta(0))
        await sleep(datetime(1969, 1, 1, tzinfo=UTC))
        return "awake"

    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == "awake"


async def test_a_timer_due_while_nobody_was_alive_fires_at_the_next_start_once(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    woken: list[float] = []
    body = sleeper(100, woken, clock)
    async with make_runtime() as rt:
        await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
    clock.advance(1000)
    assert woken == []
    async with make_runtime(recover=True) as rt, make_runtime(recover=True) as other:
        rt.register(body)
        other.register(body)
        await until_status(rt, "r1", "completed")
        assert len(woken) == 1
        ended = [event async for event in rt.events("r1") if event.type == "completed"]
        assert len(ended) == 1


async def test_a_process_that_dies_while_it_sleeps_changes_nothing_of_when_it_wakes(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    start, woken = clock.now(), list[float]()
    body = sleeper(100, woken, clock)
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(body, id="r1")
        await until_event(rt, "r1", "wait")
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        running = asyncio.ensure_future(rt.run(body, id="r1"))
        await until_status(rt, "r1", "waiting")
        clock.advance(start + 99 - clock.now())
        await rt._now().waker._look()
        assert woken == []
        clock.advance(1)
        assert await running == "awake"
        assert woken == [start + 100]


class JumpingClock:
    """A clock that is set while sleepers sleep: what they sleep is counted on another one, as in a machine."""

    def __init__(self) -> None:
        self.steady = ManualClock(0.0)
        self.set_by = 1_700_000_000.0

    def now(self) -> float:
        return self.set_by + self.steady.now()

    def sleep(self, seconds: float) -> Awaitable[None]:
        return self.steady.sleep(seconds)


@pytest.mark.parametrize("beside", [True, False], ids=["beside a call", "let go"])
async def test_a_clock_that_is_set_back_makes_a_sleep_longer_and_never_ends_it_early(beside: bool) -> None:
    clock, gate, woken = JumpingClock(), asyncio.Event(), list[float]()

    async def busy() -> None:
        await gate.wait()

    @flow
    async def body() -> None:
        if beside:
            await asyncio.gather(call(busy), nap())
        else:
            await nap()

    async def nap() -> None:
        await sleep(100)
        woken.append(clock.now())

    async with Runtime(MemoryStore(clock), clock=clock) as rt:
        due = clock.now() + 100
        handle = await rt.start(body, id="r1")
        await until_event(rt, "r1", "wait" if beside else "waiting")
        clock.set_by -= 500
        for _ in range(5):
            clock.steady.advance(100)
            await asyncio.sleep(0)
            await rt._now().waker._look()
        assert woken == []
        while not woken:
            clock.steady.advance(50)
            await asyncio.sleep(0.001)
        gate.set()
        await handle.result()
        assert len(woken) == 1
        assert woken[0] >= due


async def test_a_clock_that_is_set_forward_ends_a_sleep_once(clock: ManualClock) -> None:
    jumping, woken = JumpingClock(), list[float]()

    @flow
    async def body() -> None:
        await sleep(3600)
        woken.append(jumping.now())

    async with Runtime(MemoryStore(jumping), clock=jumping) as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        jumping.set_by += 7200
        await handle.result()  # noticed without anything else happening
        assert len(woken) == 1


async def test_sleeps_in_gathered_branches_each_end_in_their_time(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    order: list[int] = []

    async def nap(seconds: int) -> int:
        await sleep(seconds)
        order.append(seconds)
        return seconds

    @flow
    async def body() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(nap(seconds)) for seconds in (300, 100, 200)]
        return [task.result() for task in tasks]

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        for times in (1, 2):
            await until_event(rt, "r1", "waiting", times)
            clock.advance(100)
        await until_event(rt, "r1", "waiting", 3)
        assert order == [100, 100, 200]
        clock.advance(100)
        assert await handle.result() == [300, 100, 200]


async def test_many_sleeps_in_one_step_are_no_crash_loop(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    @flow
    async def body() -> int:
        for _ in range(50):
            await sleep(10)
        return 50

    async with make_runtime(crash_limit=3) as rt:
        handle = await rt.start(body, id="r1")
        for times in range(1, 51):
            await until_event(rt, "r1", "waiting", times)
            clock.advance(10)
        assert await handle.result() == 50
        run = await rt.get("r1")
        assert run is not None
        assert run.attempt == 1


async def test_a_short_sleep_does_not_let_the_run_go() -> None:
    @flow
    async def body() -> None:
        await sleep(0.15)

    async with Runtime("memory:") as rt:
        await rt.run(body, id="r1")
        assert "waiting" not in [event.type async for event in rt.events("r1")]


@pytest.mark.parametrize(
    "until",
    [-1, -0.001, float("nan"), float("inf"), timedelta(seconds=-1), datetime(2030, 1, 1), "10", None, True, 1e12],
)
async def test_a_sleep_that_makes_no_sense_is_refused_inside_and_outside_of_runs(
    make_runtime: MakeRuntime, until: Any
) -> None:
    @flow
    async def body() -> str:
        with pytest.raises(UsageError, match="sleep"):
            await sleep(until)
        return "refused"

    with pytest.raises(UsageError, match=r"sleep\(.* datetime"):
        await sleep(until)
    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == "refused"


async def test_outside_of_a_run_a_sleep_is_a_plain_one() -> None:
    await sleep(0)
    await sleep(datetime.now(UTC))


async def test_a_sleep_in_a_pipeline_keeps_what_its_step_had_done(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    made: list[str] = []

    async def fetch() -> str:
        made.append("fetch")
        return "page"

    async def slow(state: list[str]) -> list[str]:
        page = await call(fetch)
        await sleep(60)
        return [*state, page]

    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("slow", [slow]), ["start"], id="r1")
        await until_status(rt, "r1", "waiting")
        clock.advance(60)
        assert await handle.result() == ["start", "page"]
        assert made == ["fetch"]


async def test_sleep_works_without_a_store(clock: ManualClock) -> None:
    @flow
    async def body() -> str:
        await sleep(60)
        return await ask("Well?", timeout=60, default="nobody")

    async with Runtime(None, clock=clock) as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        clock.advance(60)
        await until_event(rt, "r1", "waiting", 2)
        clock.advance(60)
        assert await handle.result() == "nobody"
