"""Children that are waited for: the parent needs no process, is woken, and finds them again after a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.offspring import at, begin_anew, double, gate, gated, parent_of_gated, ran
from holdfast import ask, call, flow, spawn
from holdfast.engine import waking
from holdfast.errors import RunWaitingError
from holdfast.model import Mail, Posted
from holdfast.testing import ManualClock
from watched import WatchedStore, kill


@pytest.fixture(autouse=True)
async def _fresh() -> None:
    begin_anew()


@flow
async def asking(question: str) -> str:
    answer = await ask(question)
    return f"{question} {answer}"


async def test_the_parent_is_let_go_while_it_waits_and_woken_when_the_child_ends(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        handle = await rt.start(parent_of_gated, 4, id="p")
        run = await at(rt, "p", "waiting")
        assert run.waiting_for == "child run child"
        assert run.owner is None
        gate.open.set()
        assert await handle.result() == 9
        assert ran == [4]


@pytest.fixture
def look_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every so often whether a child has ended without telling, as in earnest, but more often."""
    monkeypatch.setattr(waking, "CHILDREN_EVERY", 0.1)
    monkeypatch.setattr(waking, "POLL", 0.1)


class DropsChildMail(WatchedStore):
    """As if the process of the child had died between the child's end and telling the parent."""

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        return Posted.ACCEPTED if mail.kind == "child" else await super().post_mail(run, mail)


@pytest.mark.usefixtures("look_soon")
@pytest.mark.parametrize("beside", [0, 4])
async def test_a_parent_that_was_never_told_finds_out_by_itself(
    make_runtime: MakeRuntime, make_store: MakeStore, beside: int
) -> None:
    @flow
    async def parent() -> int:
        questions = [asyncio.ensure_future(ask(f"question {i}?")) for i in range(beside)]
        await asyncio.sleep(0)
        result: int = await spawn(gated, 4, id="child")
        for question in questions:
            question.cancel()
        return result

    async with make_runtime(DropsChildMail(make_store())) as rt:
        handle = await rt.start(parent, id="p")
        await at(rt, "p", "waiting")
        gate.open.set()
        assert await handle.result() == 8


async def test_one_slot_is_enough_for_a_parent_and_its_children(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> int:
        return sum(await asyncio.gather(*(spawn(double, i) for i in range(3))))

    @flow
    async def outer() -> int:
        result: int = await spawn(parent)
        return result

    async with make_runtime(concurrency=1) as rt:
        assert await rt.run(outer) == 6


async def test_a_child_that_asks_is_answered_by_its_own_id(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> str:
        result: str = await spawn(asking, "may I?", id="child")
        return result

    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError, match="child run child"):
            await rt.run(parent, id="p", until="settled")
        assert [one.run async for one in rt.asks()] == ["child"]
        await rt.answer("child", "yes")
        assert await rt.run(parent, id="p", until="settled") == "may I? yes"


@pytest.mark.usefixtures("look_soon")
async def test_settled_means_that_the_children_are_too(make_runtime: MakeRuntime, make_store: MakeStore) -> None:
    async with make_runtime(DropsChildMail(make_store())) as rt:
        running = asyncio.ensure_future(rt.run(parent_of_gated, 4, id="p", until="settled"))
        await at(rt, "p", "waiting")
        assert not running.done()
        gate.open.set()
        assert await running == 9, "a child that has ended without telling yet is not something from outside"


async def test_a_child_that_the_code_does_not_ask_for_any_more_does_not_wake_its_parent_all_the_time(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    asked_for = ["a", "b"]

    @flow
    async def kid(state: Any) -> Any:
        return await ask("Go on?")

    @flow
    async def parent(state: Any) -> Any:
        return await asyncio.gather(*(spawn(kid, id=run) for run in asked_for))

    async with make_runtime() as rt:
        await rt.start(parent, id="p")
        for run in ("a", "b", "p"):
            await at(rt, run, "waiting")
    asked_for.remove("a")  # the program was changed
    store = WatchedStore(make_store())
    async with make_runtime(store, recover=True) as rt:
        rt.register(parent, kid)
        await rt.answer("a", 1)
        await at(rt, "a", "completed")
        async with asyncio.timeout(10):
            with pytest.raises(RunWaitingError, match="child run b"):
                await rt.run(parent, id="p", until="settled")
        before = store.commits
        for _ in range(3):
            rt._now().waker._sweep_at = rt._now().waker._children_at = 0.0
            await rt._now().waker._look()
        assert store.commits == before
        await rt.answer("b", 2)
        assert await rt.run(parent, id="p") == [2]


# Crashes


async def test_a_waiting_parent_that_is_run_again_takes_up_the_child_that_nobody_drives(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(parent_of_gated, 4, id="p")
        await gate.reached.wait()
        await at(rt, "p", "waiting")
        await kill(rt, store, clock)
    gate.open.set()
    async with make_runtime() as rt:
        rt.register(gated)
        assert await rt.run(parent_of_gated, 4, id="p") == 9
        assert ran == [4]


async def test_a_replayed_parent_finds_its_children_and_takes_up_those_that_nobody_awaits(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside = asyncio.Event()

    @flow
    async def parent(n: int) -> int:
        spawn(gated, 1, id="loose")
        got: int = await spawn(double, n, id="child")
        inside.set()
        await gate.open.wait()
        return got

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(parent, 4, id="p")
        await inside.wait()
        await gate.reached.wait()
        await kill(rt, store, clock)
    gate.open.set()
    async with make_runtime() as rt:
        assert await rt.run(parent, 4, id="p") == 8
        await at(rt, "loose", "completed")
        assert sorted(ran) == [1, 4]


async def test_a_child_spawned_inside_a_finished_call_is_taken_up_with_its_parent(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside = asyncio.Event()

    async def begins() -> str:
        return spawn(gated, 1, id="loose").id

    @flow
    async def parent() -> str:
        loose = await call(begins)
        inside.set()
        await gate.open.wait()
        return loose

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(parent, id="p")
        await inside.wait()
        await kill(rt, store, clock)
    gate.open.set()
    async with make_runtime() as rt:
        rt.register(gated)
        assert await rt.run(parent, id="p") == "loose"
        await at(rt, "loose", "completed")
        assert ran == [1]
