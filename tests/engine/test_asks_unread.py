"""Answers that nobody reads at once: the code is slow to come to its question, comes to it late, or never again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conftest import MakeRuntime
from holdfast import ask, flow, receive
from holdfast.errors import AnsweredError
from holdfast.model import Query
from holdfast.testing import ManualClock
from waiting import until_event, until_status


async def test_an_answer_is_not_lost_when_the_code_is_slow_to_come_to_its_question_again(
    make_runtime: MakeRuntime,
) -> None:
    lives = 0

    async def question() -> Any:
        if lives == 2:
            await asyncio.sleep(0.5)  # the run is let go meanwhile: all that it is seen to do is to wait for a message
        return await ask("Go on?")

    @flow
    async def order(state: Any) -> Any:
        nonlocal lives
        lives += 1
        return list(await asyncio.gather(receive("news"), question()))

    async with make_runtime() as rt:
        handle = await rt.start(order, {}, id="r1")
        await until_status(rt, "r1", "waiting")
        await rt.answer("r1", "yes")
        async with asyncio.timeout(10):
            while [one async for one in rt.asks("r1")]:
                await asyncio.sleep(0.01)
        await rt.send("r1", "news", 1)
        assert await handle.result() == [1, "yes"]


async def test_an_answer_to_a_question_that_the_code_does_not_ask_any_more_does_not_wake_the_run_for_ever(
    make_runtime: MakeRuntime,
) -> None:
    lives = 0

    @flow
    async def order(state: Any) -> Any:
        nonlocal lives
        lives += 1
        first = [ask("Go on?")] if lives == 1 else []
        return list(await asyncio.gather(receive("news"), *first))

    async with make_runtime() as rt:
        handle = await rt.start(order, {}, id="r1")
        await until_status(rt, "r1", "waiting")
        await rt.answer("r1", "yes")
        await until_event(rt, "r1", "waiting", times=4)
        await rt.send("r1", "news", 1)
        assert await handle.result() == [1]
    assert lives <= 6


@pytest.mark.parametrize("late", [False, True])
async def test_what_came_for_a_question_is_kept_for_code_that_comes_to_it_behind_another_wait(
    make_runtime: MakeRuntime, clock: ManualClock, late: bool
) -> None:
    asks_first = True

    @flow
    async def order(state: Any) -> Any:
        news = None if asks_first else await receive("news")
        return [news, await ask("Go on?", schema=bool, timeout=60, default="late")]

    async with make_runtime() as rt:
        await rt.start(order, {}, id="r1")
        await until_status(rt, "r1", "waiting")
    asks_first = False  # the program was changed
    async with make_runtime() as rt, asyncio.timeout(20):
        if late:
            clock.advance(61)
            with pytest.raises(AnsweredError):
                await rt.answer("r1", True)
        else:
            await rt.answer("r1", True)
        running = asyncio.ensure_future(rt.run(order, {}, id="r1"))
        await until_event(rt, "r1", "waiting", times=4)
        assert not await rt._store.list_heads(Query(has_mail=True))
        await rt.send("r1", "news", 1)
        assert await running == [1, "late" if late else True]
        assert [problem async for problem in rt.doctor()] == []


async def test_how_often_an_answer_was_left_unread_is_counted_through_all_processes(
    make_runtime: MakeRuntime,
) -> None:
    asks_first = True

    @flow
    async def order(state: Any) -> Any:
        news = None if asks_first else await receive("news")
        return [news, await ask("Go on?", schema=bool)]

    async with make_runtime() as rt:
        await rt.start(order, {}, id="r1")
        await until_status(rt, "r1", "waiting")
    asks_first = False  # the program was changed
    async with make_runtime() as rt:
        await rt.answer("r1", True)
    left: list[bool] = []
    for _ in range(3):
        async with make_runtime() as rt:
            rt.register(order)
            rt._now().engine.let_go = lambda run, due: None  # once is enough in each of these lives
            (live,) = await rt._now().recovery.wake(await rt._store.list_heads(Query(ids=("r1",))))
            await live.done.wait()
            left.append(bool(await rt._store.list_heads(Query(has_mail=True))))
            told = [event.data async for event in rt.events("r1") if event.type == "waiting"]
            assert told[-1].keys() == {"for", "until"}
            assert [problem async for problem in rt.doctor()] == []
    assert left == [True, True, False]
