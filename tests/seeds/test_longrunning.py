"""What longrunning promises, in Holdfast: named steps, pause and resume, events, taking up everything at boot."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Event, Pipeline, RetryPolicy, Runtime, step
from holdfast.errors import (
    InvalidIdError,
    RunCancelledError,
    RunExistsError,
    RunFailedError,
    RunOwnedError,
    RunPausedError,
    StepMissingError,
    StoreUnavailableError,
)
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


class Execution:
    """Three named steps; the second one waits for the test when asked to."""

    def __init__(self, *, waits: bool = False) -> None:
        self.order: list[str] = []
        self.inside, self.gate = asyncio.Event(), asyncio.Event()
        if not waits:
            self.gate.set()
        self.flow = Pipeline("execution", [self.one, self.two, self.three])

    async def one(self, state: dict[str, Any]) -> dict[str, Any]:
        self.order.append("one")
        return {**state, "one": 1}

    async def two(self, state: dict[str, Any]) -> dict[str, Any]:
        self.order.append("two")
        self.inside.set()
        await self.gate.wait()
        return {**state, "two": 2}

    def three(self, state: dict[str, Any]) -> dict[str, Any]:
        self.order.append("three")
        return {**state, "three": 3}


RESULT = {"n": 1, "one": 1, "two": 2, "three": 3}


async def test_three_steps_run_in_order_to_100_percent(make_runtime: MakeRuntime) -> None:
    execution = Execution()
    async with make_runtime() as rt:
        assert await rt.run(execution.flow, {"n": 1}, id="e1") == RESULT
        run = await rt.get("e1")
    assert execution.order == ["one", "two", "three"]
    assert run is not None
    assert (run.status, run.progress, run.step_names) == ("completed", 100.0, ("one", "two", "three"))
    assert run.ended_at is not None


async def test_a_pause_during_a_step_lets_it_finish_and_resume_completes(make_runtime: MakeRuntime) -> None:
    execution = Execution(waits=True)
    async with make_runtime() as rt:
        handle = await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
        await handle.pause()
        execution.gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
        run = await rt.get("e1")
        assert run is not None
        assert (run.status, run.step) == ("paused", 2)
        await handle.resume()
        assert await handle.result() == RESULT
    assert execution.order == ["one", "two", "three"]


async def test_a_second_process_loads_a_finished_run(make_runtime: MakeRuntime) -> None:
    execution = Execution()
    async with make_runtime() as rt:
        await rt.run(execution.flow, {"n": 1}, id="e1")
    async with make_runtime() as rt:
        run, point = await rt.get("e1"), await rt.load("e1")
    assert run is not None
    assert point is not None
    assert (run.status, point.state) == ("completed", RESULT)


@pytest.mark.parametrize(("failures", "status"), [(2, "completed"), (3, "failed")])
async def test_two_retries_make_three_attempts(
    make_runtime: MakeRuntime, clock: ManualClock, failures: int, status: str
) -> None:
    attempts: list[int] = []
    seen: list[str] = []

    @step(retry=RetryPolicy(attempts=3))
    def shaky(state: Any) -> Any:
        attempts.append(1)
        if len(attempts) <= failures:
            raise ConnectionError(f"failure {len(attempts)}")
        return state

    def on_event(event: Event) -> None:
        seen.append(event.type)
        if event.type == "step_failed":
            clock.advance(3600)

    async with make_runtime(on_event=on_event, lease=1e9) as rt:
        handle = await rt.start(Pipeline("shaky", [shaky]), {}, id="e1")
        with contextlib.suppress(RunFailedError):
            await handle.result()
        run = await rt.get("e1")
    assert run is not None
    assert (run.status, len(attempts)) == (status, 3)
    assert seen.count("step_failed") == failures
    assert run.error == (None if status == "completed" else "ConnectionError: failure 3")


async def test_a_cancel_during_a_step(make_runtime: MakeRuntime) -> None:
    execution = Execution(waits=True)
    async with make_runtime() as rt:
        handle = await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
        await handle.cancel("user asked")
        with pytest.raises(RunCancelledError, match="user asked"):
            await handle.result()
    assert execution.order == ["one", "two"]


async def test_a_cancel_while_paused_and_during_a_backoff(make_runtime: MakeRuntime) -> None:
    failed, execution = asyncio.Event(), Execution(waits=True)

    @step(retry=RetryPolicy(attempts=9, first_delay=60))
    def broken(state: Any) -> None:
        raise ConnectionError("down")

    def on_event(event: Event) -> None:
        if event.type == "step_failed":
            failed.set()

    async with make_runtime(on_event=on_event) as rt:
        paused = await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
        await paused.pause()
        execution.gate.set()
        with pytest.raises(RunPausedError):
            await paused.result()
        waiting = await rt.start(Pipeline("broken", [broken]), {}, id="e2")
        await failed.wait()
        for handle in (paused, waiting):
            await handle.cancel()
            with pytest.raises(RunCancelledError):
                await handle.result()


async def test_everything_interrupted_is_resumed_at_boot_and_counted(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    execution, store = Execution(waits=True), WatchedStore(make_store())
    async with make_runtime(store) as rt:
        for number in range(3):
            execution.inside.clear()
            await rt.start(execution.flow, {"n": 1}, id=f"e{number}")
            await execution.inside.wait()
        await kill(rt, store, clock)
    execution.gate.set()
    async with make_runtime() as rt:
        rt.register(execution.flow)
        handles = await rt.recover()
        assert len(handles) == 3
        assert [await handle.result() for handle in handles] == [RESULT] * 3
        assert len(await rt.recover()) == 0  # completed ones are not touched
    assert execution.order.count("one") == 3


async def test_an_unregistered_step_is_a_clear_error_that_names_it(make_runtime: MakeRuntime) -> None:
    execution = Execution(waits=True)
    async with make_runtime(grace=0) as rt:
        await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
    async with make_runtime() as rt:
        rt.register(Pipeline("execution", [execution.one, execution.three]))
        assert await rt.recover() == []
        with pytest.raises(StepMissingError, match="'two'"):
            await rt.resume("e1")


async def test_a_clean_shutdown_is_interrupted_and_never_cancelled(make_runtime: MakeRuntime) -> None:
    execution = Execution(waits=True)
    async with make_runtime(grace=0) as rt:
        await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
    execution.gate.set()
    async with make_runtime() as rt:
        run = await rt.get("e1")
        assert run is not None
        assert run.status == "interrupted"
        rt.register(execution.flow)
        (handle,) = await rt.recover()
        assert await handle.result() == RESULT


async def test_paused_by_a_user_stays_paused_at_boot_unless_asked_otherwise(make_runtime: MakeRuntime) -> None:
    execution = Execution(waits=True)
    async with make_runtime() as rt:
        handle = await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
        await handle.pause()
        execution.gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
    async with make_runtime(recover=True, heartbeat=0.01) as rt:
        rt.register(execution.flow)
        assert await rt.recover() == []
        run = await rt.get("e1")
        assert run is not None
        assert run.status == "paused"
        assert await (await rt.resume("e1")).result() == RESULT


async def test_events_arrive_in_order_with_step_failed_once_per_attempt(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    seen: list[tuple[str, str | None]] = []
    attempts: list[int] = []

    @step(retry=RetryPolicy(attempts=3))
    def shaky(state: Any) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("down")

    def on_event(event: Event) -> None:
        seen.append((event.type, event.step))
        if event.type == "step_failed":
            clock.advance(3600)

    execution = Execution()
    async with make_runtime(on_event=on_event, lease=1e9) as rt:
        await rt.run(Pipeline("events", [execution.one, shaky]), {}, id="e1")
    one = [("step_started", "one"), ("step_completed", "one"), ("checkpointed", "one")]
    failed = [("step_started", "shaky"), ("step_failed", "shaky")]
    last = [("step_started", "shaky"), ("step_completed", "shaky"), ("checkpointed", "shaky")]
    assert seen == [("created", None), *one, *failed, *failed, *last, ("completed", None)]


async def test_checkpointed_is_never_emitted_for_a_save_that_failed(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    seen: list[str] = []
    store = WatchedStore(make_store())
    execution = Execution(waits=True)
    async with make_runtime(store, on_event=lambda event: seen.append(event.type)) as rt:
        handle = await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
        store.refuse = lambda commit: bool(commit.entries)
        execution.gate.set()
        with pytest.raises(StoreUnavailableError):
            await handle.result()
        store.refuse = lambda commit: False
    assert seen.count("checkpointed") == 1


async def test_progress_and_heartbeat_advance(make_runtime: MakeRuntime, make_store: MakeStore) -> None:
    execution, store = Execution(waits=True), make_store()
    async with make_runtime(heartbeat=0.01) as rt:
        await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
        run = await rt.get("e1")
        assert run is not None
        assert run.progress == pytest.approx(100 / 3)
        await store.open()
        assert [known.alive for known in await store.list_owners()] == [True]
        await store.close()
        execution.gate.set()
        await rt.run(execution.flow, {"n": 1}, id="e1")
        run = await rt.get("e1")
    assert run is not None
    assert run.progress == 100.0


async def test_anonymous_steps_get_names_by_position_and_can_be_resumed(make_runtime: MakeRuntime) -> None:
    broken = [True]

    def fail_once(state: list[int]) -> list[int]:
        if broken:
            raise ConnectionError("down")
        return [*state, 2]

    def flow() -> Any:
        return Pipeline("anonymous", [lambda s: [*s, 1], functools.partial(fail_once), lambda s: [*s, 3]])

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="'step-2'"):
            await rt.run(flow(), [], id="e1")
    broken.clear()
    async with make_runtime() as rt:
        rt.register(flow())
        run = await rt.get("e1")
        assert run is not None
        assert run.step_names == ("step-1", "step-2", "step-3")
        assert await (await rt.resume("e1")).result() == [1, 2, 3]


async def test_starting_a_run_that_is_live_anywhere_is_refused(make_runtime: MakeRuntime) -> None:
    execution = Execution(waits=True)
    async with make_runtime() as rt, make_runtime() as other:
        await rt.start(execution.flow, {"n": 1}, id="e1")
        await execution.inside.wait()
        other.register(execution.flow)
        for runtime in (rt, other):
            with pytest.raises(RunExistsError):
                await runtime.start(execution.flow, {"n": 1}, id="e1")
            with pytest.raises(RunOwnedError):
                await runtime.resume("e1")
        execution.gate.set()
        assert await rt.run(execution.flow, {"n": 1}, id="e1") == RESULT
    assert execution.order == ["one", "two", "three"]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, RecursionError, MemoryError])
async def test_a_step_that_raises_anything_fails_the_run_and_not_the_process(
    make_runtime: MakeRuntime, error: type[BaseException]
) -> None:
    def panic(state: Any) -> None:
        raise error

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=error.__name__):
            await rt.run(Pipeline("panic", [panic]), {}, id="e1")
        assert await rt.run(Execution().flow, {"n": 1}, id="e2") == RESULT


async def test_an_int_is_still_an_int_after_resume(make_runtime: MakeRuntime) -> None:
    execution = Execution(waits=True)
    async with make_runtime(grace=0) as rt:
        await rt.start(execution.flow, {"n": 1, "f": 1.0, "b": True}, id="e1")
        await execution.inside.wait()
    execution.gate.set()
    async with make_runtime() as rt:
        rt.register(execution.flow)
        state = await (await rt.resume("e1")).result()
    assert [type(state[key]) for key in "nfb"] == [int, float, bool]


async def test_a_run_is_on_disk_before_its_first_step(make_runtime: MakeRuntime) -> None:
    found = []
    async with make_runtime() as other:

        async def look(state: Any) -> None:
            found.append(await other.get("e1"))

        async with make_runtime() as rt:
            await rt.run(Pipeline("look", [look]), {}, id="e1")
    assert found[0] is not None


async def test_an_id_is_no_path(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        with pytest.raises(InvalidIdError):
            await rt.start(Execution().flow, {"n": 1}, id="../../etc/passwd")
