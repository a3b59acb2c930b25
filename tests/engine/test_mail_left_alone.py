"""Mail that comes to nothing wakes a run once; mail of a kind that is not known yet is kept and wakes nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import Runtime, ask, call, flow, receive
from holdfast.core.transitions import WAITS
from holdfast.engine import postman
from holdfast.errors import RunWaitingError
from holdfast.model import Mail, Query
from waiting import until_event, until_status
from watched import WatchedStore


@flow
async def collect(count: int) -> list[Any]:
    return [await receive("news") for _ in range(count)]


async def test_a_message_on_another_topic_wakes_a_run_once_and_not_for_ever(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store, recover=True) as rt:
        handle = await rt.start(collect, 1, id="r1")
        await until_status(rt, "r1", "waiting")
        await rt.send("r1", "gossip", "unheard")
        await until_event(rt, "r1", "waiting", 2)
        await _nobody_is_woken(rt, store)
        await rt.send("r1", "news", "heard")
        assert await handle.result() == ["heard"]


async def test_mail_that_comes_to_nothing_wakes_a_run_once_and_not_for_ever(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store, recover=True) as rt:
        handle = await rt.start(collect, 1, id="r1")
        await until_status(rt, "r1", "waiting")
        await store.post_mail("r1", Mail("answer", b'{"ask":"nosuch","value":1}', key="answer-nosuch"))
        await store.post_mail("r1", Mail("child", b'{"run":"nobody"}'))
        # One wake may have found one of them or both.
        async with asyncio.timeout(20):
            while not await store.list_heads(Query(ids=("r1",), states=WAITS, has_mail=False)):
                await _look_again(rt)
        await _nobody_is_woken(rt, store)
        await rt.send("r1", "news", 1)
        assert await handle.result() == [1]


async def test_mail_of_a_kind_that_only_a_newer_version_knows_is_kept_for_it_and_wakes_nobody_here(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store, recover=True) as rt:
        await rt.start(collect, 2, id="r1")
        await until_status(rt, "r1", "waiting")
        fence = await _fence(store, "r1")
        await store.post_mail("r1", Mail("riddle", b"of no form that is known"))
        await _nobody_is_woken(rt, store)
        assert await _fence(store, "r1") == fence
        with pytest.raises(RunWaitingError):
            await rt.run(collect, 2, id="r1", until="settled")
        await rt.send("r1", "news", 1)
        await until_event(rt, "r1", "waiting", 2)
        await _nobody_is_woken(rt, store)
        await rt.pause("r1")
    async with make_runtime(store, recover=True) as rt:
        rt.register(collect)
        handle = await rt.resume("r1")
        await until_event(rt, "r1", "waiting", 3)
        await _nobody_is_woken(rt, store)
        await rt.send("r1", "news", 2)
        assert await handle.result() == [1, 2]
    newer = make_store()
    await newer.open()
    (claim,) = await newer.claim_runs(Query(ids=("r1",)), "newer")
    await newer.close()
    assert [(mail.kind, mail.body) for mail in claim.mail] == [("riddle", b"of no form that is known")]


async def test_mail_that_only_a_newer_version_knows_is_not_asked_for_again_and_again_while_the_run_is_live(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = asyncio.Semaphore(0)

    async def work() -> None:
        inside.release()
        await asyncio.Event().wait()

    @flow
    async def busy() -> Any:
        working = asyncio.create_task(call(work))
        news = await receive("news")
        working.cancel()
        return news

    store = make_store()
    async with make_runtime(store) as rt, asyncio.timeout(20):
        _, handle = [await rt.start(busy, id=run) for run in ("r1", "r2")]
        for run in ("r1", "r2"):
            await inside.acquire()
            await until_event(rt, run, "wait")
        monkeypatch.setattr(postman, "QUIET", -1.0)  # they have been for long enough
        fetched: list[str] = []
        fetch = rt._now().engine.postman.fetch

        async def seen(run: str) -> None:
            fetched.append(run)
            await fetch(run)

        monkeypatch.setattr(rt._now().engine.postman, "fetch", seen)
        await store.post_mail("r1", Mail("riddle"))
        await store.post_mail("r2", Mail("send", b'{"topic":"news","data":1}'))
        assert await handle.result() == 1
        assert "r1" not in fetched
        assert "r2" in fetched


async def test_mail_that_only_a_newer_version_knows_is_not_taken_for_an_answer(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    @flow
    async def asking() -> Any:
        return await ask("Go on?")

    store = make_store()
    async with make_runtime(store) as rt:
        await rt.start(asking, id="r1")
        await until_status(rt, "r1", "waiting")
        await store.post_mail("r1", Mail("riddle"))
        assert [question.unread async for question in rt.asks("r1")] == [False]


async def _nobody_is_woken(rt: Runtime, store: WatchedStore) -> None:
    await _until_left(rt, "r1")
    before = store.commits, await _fence(store, "r1")
    for _ in range(5):
        await _look_again(rt)
    assert (store.commits, await _fence(store, "r1")) == before


async def _fence(store: WatchedStore, run: str) -> int:
    (head,) = await store.inner.read_heads([run])
    assert head is not None
    return head.fence


async def _until_left(rt: Runtime, run: str) -> None:
    """Return when the runtime knows what the store may show already: that the last commit of the run is done."""
    async with asyncio.timeout(20):
        while run in rt._now().engine.live:
            await asyncio.sleep(0)


async def _look_again(rt: Runtime) -> None:
    """Let everybody who looks for runs that are due do so once more."""
    await rt._now().worker._look()
    await rt._now().waker._look()
