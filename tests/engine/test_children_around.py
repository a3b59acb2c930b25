"""Children and what goes on around them: a shutdown, a pause, many at once, a store that keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import Pipeline, Runtime, blocking, call, current_run, flow, spawn
from holdfast.core.codec import loads
from holdfast.errors import RunInterruptedError, StoreUnavailableError
from holdfast.model import Mail, Posted
from holdfast.testing import ManualClock
from watched import WatchedStore, kill


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    """Return as soon as it is so."""
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.01)


async def has(rt: Runtime, run: str, status: str) -> None:
    """Return as soon as the run has that status."""

    async def so() -> bool:
        found = await rt.get(run)
        return found is not None and found.status == status

    await until(so)


@flow
async def double(n: int) -> int:
    return 2 * n


class Gate:
    """Opened by the test."""

    def __init__(self) -> None:
        self.open, self.reached = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.open.wait()


def _function(gate: Gate) -> Any:
    @flow
    async def parent(n: int) -> int:
        await gate()
        result: int = await spawn(double, n)
        return result

    return parent


def _unawaited(gate: Gate) -> Any:
    @flow
    async def parent(n: int) -> int:
        await gate()
        spawn(double, n, id="child")
        return 2 * n

    return parent


def _in_a_call(gate: Gate) -> Any:
    async def inside(n: int) -> int:
        await gate()
        spawn(double, n, id="child")
        return 2 * n

    @flow
    async def parent(n: int) -> int:
        return await call(inside, n)

    return parent


def _pipeline(gate: Gate) -> Any:
    async def only(n: int) -> int:
        await gate()
        result: int = await spawn(double, n)
        return result

    return Pipeline("parent", [only])


def _threads(gate: Gate) -> Any:
    @flow
    def parent(n: int) -> int:
        loop = current_run().frame.scope.loop
        asyncio.run_coroutine_threadsafe(gate(), loop).result(20)
        result: int = blocking.spawn(double, n).result()
        return result

    return parent


@pytest.mark.parametrize("make", [_function, _unawaited, _in_a_call, _pipeline, _threads])
async def test_a_parent_that_spawns_while_its_process_shuts_down_is_handed_back_and_goes_on_later(
    make_runtime: MakeRuntime, make: Callable[[Gate], Any]
) -> None:
    gate = Gate()
    parent = make(gate)
    async with make_runtime() as rt:
        handle = await rt.start(parent, 4, id="p")
        await gate.reached.wait()
        closing = asyncio.ensure_future(rt.close())
        result = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)
        gate.open.set()
        with pytest.raises(RunInterruptedError):
            await result
        await closing
    async with make_runtime() as rt:
        assert await rt.run(parent, 4, id="p") == 8
        children = [run async for run in rt.list(parent="p")]
        assert len(children) == 1
        await has(rt, children[0].id, "completed")


async def test_a_def_parent_is_let_go_while_it_waits(make_runtime: MakeRuntime) -> None:
    gate = Gate()

    @flow
    async def gated(n: int) -> int:
        await gate()
        return 2 * n

    @flow
    def parent(n: int) -> int:
        first: int = blocking.spawn(gated, n, id="child").result()
        return first + 1

    async with make_runtime() as rt:
        handle = await rt.start(parent, 4, id="p")
        await has(rt, "p", "waiting")
        gate.open.set()
        assert await handle.result() == 9


async def test_a_child_that_another_runtime_drives_wakes_its_parent(make_runtime: MakeRuntime) -> None:
    gate = Gate()

    @flow
    async def gated(n: int) -> int:
        await gate()
        return 2 * n

    @flow
    async def parent(n: int) -> int:
        result: int = await spawn(gated, n, id="child")
        return result

    async with make_runtime() as here, make_runtime() as there:
        await there.start(gated, 4, id="child", parent="p")
        handle = await here.start(parent, 4, id="p")
        await has(here, "p", "waiting")
        gate.open.set()
        assert await handle.result() == 8


async def test_a_parent_is_told_of_a_child_that_was_given_up_deleted_or_cancelled_while_nobody_drove_it(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    gate, told = Gate(), list[str]()

    class Telling(WatchedStore):
        async def post_mail(self, run: str, mail: Mail) -> Posted:
            told.append(f"{run} {mail.kind} {loads(mail.body)['run']}")  # type: ignore[index, call-overload]
            return await super().post_mail(run, mail)

    @flow
    async def gated(n: int) -> int:
        if n == 2:
            gate.reached.set()
        await gate.open.wait()
        return 2 * n

    @flow
    async def parent(n: int) -> list[str]:
        children = [spawn(gated, i, id=f"child-{i}") for i in range(n)]
        ends = await asyncio.gather(*children, return_exceptions=True)
        return [type(end).__name__ for end in ends]

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(parent, 3, id="p")
        await gate.reached.wait()
        await has(rt, "p", "waiting")
        await kill(rt, store, clock)
    async with make_runtime(Telling(make_store()), crash_limit=1) as rt:
        await rt.cancel("child-0")
        await rt.delete("child-1")
        assert told == ["p child child-0", "p child child-1"]
        assert await rt.run(parent, 3, id="p") == ["RunCancelledError", "RunNotFoundError", "RunFailedError"]
        assert "p child child-2" in told


async def test_a_paused_parent_finds_its_ended_child_when_it_is_resumed(make_runtime: MakeRuntime) -> None:
    gate = Gate()

    @flow
    async def gated(n: int) -> int:
        await gate()
        return 2 * n

    @flow
    async def parent(n: int) -> int:
        result: int = await spawn(gated, n, id="child")
        return result

    async with make_runtime() as rt:
        await rt.start(parent, 4, id="p")
        await has(rt, "p", "waiting")
        await rt.pause("p")
        gate.open.set()
        await has(rt, "child", "completed")
        run = await rt.get("p")
        assert run is not None
        assert run.status == "paused"
        assert await (await rt.resume("p")).result() == 8


async def test_two_hundred_children_cost_their_parent_few_commits_and_few_looks(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    class Counting(WatchedStore):
        looks = 0

        async def read_heads(self, ids: Any) -> Any:
            self.looks += len(ids)
            return await super().read_heads(ids)

    @flow
    async def parent(n: int) -> int:
        return sum(await asyncio.gather(*(spawn(double, i) for i in range(n))))

    store = Counting(make_store())
    async with make_runtime(store) as rt:
        assert await rt.run(parent, 200, id="p") == 200 * 199
    assert store.looks < 10 * 200, "each child is looked at when it is waited for and when it ends"
    written = sum(commit.run == "p" for batch in store.batches for commit in batch)
    assert written < 200


async def test_children_work_on_a_store_that_keeps_nothing() -> None:
    @flow
    async def middle(n: int) -> int:
        result: int = await spawn(double, n, id="child")
        return result

    @flow
    async def parent(n: int) -> int:
        result: int = await spawn(middle, n, id="middle")
        return result

    async with Runtime(None) as rt:
        assert await rt.run(parent, 4, id="p") == 8
        assert [run.id async for run in rt.list()] == []


@pytest.mark.parametrize("moment", ["spawned", "cancelled"])
async def test_a_store_that_does_not_answer_when_a_child_is_spawned_or_cancelled_does_not_fail_the_parent(
    moment: str, make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is back at once, so the failure could well be written down: it must not be."""
    store, attempts = WatchedStore(make_store()), list[int]()
    post, away = store.post_mail, [moment]

    async def post_mail(run: str, mail: Mail) -> Posted:
        if away.count("cancelled"):
            away.remove("cancelled")
            raise StoreUnavailableError("the connection is lost")
        return await post(run, mail)

    def refuse(commit: Any) -> bool:
        if commit.create is None or commit.create.parent is None or "spawned" not in away:
            return False
        away.remove("spawned")
        return True

    monkeypatch.setattr(store, "post_mail", post_mail)
    store.refuse = refuse

    @flow
    async def long(n: int) -> None:
        await asyncio.Event().wait()

    async def nothing() -> None: ...

    @flow
    async def parent(n: int) -> int:
        attempts.append(current_run().attempt)
        if moment == "spawned":
            return int(await spawn(double, n))
        child = spawn(long, n)
        await call(nothing)  # which is not done before the child exists
        await child.cancel("enough")
        return 2 * n

    async with make_runtime(store) as rt:
        with pytest.raises(StoreUnavailableError):
            await rt.run(parent, 21, id="p")
        assert away == []
        assert await rt.run(parent, 21, id="p") == 42
    assert len(attempts) == 2


# A store that cannot be written


async def test_a_parent_outlives_that_its_child_could_not_be_written_and_it_is_told(
    make_runtime: MakeRuntime, make_store: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    @flow
    async def parent() -> int:
        result: int = await spawn(double, 21, id="child")
        return result

    store = WatchedStore(make_store())
    full = True
    store.refuse = lambda commit: full and commit.run == "child" and commit.create is None
    async with make_runtime(store) as rt:
        running = asyncio.ensure_future(rt.run(parent, id="parent"))
        await has(rt, "parent", "waiting")
        full = False
        assert await running == 42
    told = [record.message for record in caplog.records if "a child run was stopped by the store" in record.message]
    assert len(told) == 2, told
    assert "no space left on device" in told[0]
    assert "it is over" in told[1]
