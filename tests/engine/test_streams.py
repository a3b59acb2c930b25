"""Streams: chunks are seen live, kept in order, read exactly once, and superseded when an attempt goes another way."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import CheckpointPolicy, Event, Pipeline, RetryPolicy, Runtime, ask, call, current_run, emit, flow, step
from holdfast.engine import notes
from holdfast.engine.notes import CHUNKS_ENOUGH, CHUNKS_WAIT
from holdfast.errors import RunFailedError, UsageError
from holdfast.testing import ManualClock
from watched import WatchedStore, kill

TWICE = RetryPolicy(attempts=2, first_delay=0.001)


async def chunks(rt: Runtime, run: str = "r") -> list[Any]:
    """The data of all chunks that are in the log, superseded or not."""
    return [event.data["data"] async for event in rt.events(run) if event.type == "emitted"]


async def valid(rt: Runtime, run: str = "r") -> list[Any]:
    """The data of the chunks that count: what a reader is left with who drops what is superseded."""
    kept: dict[int, Any] = {}
    async for event in rt.events(run):
        if event.type == "emitted":
            assert event.seq is not None
            kept[event.seq] = event.data["data"]
        elif event.type == "superseded":
            for seq in event.data["seqs"]:
                del kept[seq]  # each was there, and is superseded once
    return list(kept.values())


# Emitting


async def test_chunks_from_bodies_calls_branches_and_threads_are_kept_in_order(make_runtime: MakeRuntime) -> None:
    def in_a_thread(n: int) -> None:
        for i in range(n):
            emit("thread", i)

    async def in_a_call(n: int) -> None:
        for i in range(n):
            await emit("call", i)

    async def branch(name: str) -> None:
        for i in range(5):
            emit(name, i)
            await asyncio.sleep(0)

    @flow
    async def producer() -> None:
        emit("body", 0)
        await call(in_a_thread, 5)
        await call(in_a_call, 5)
        await asyncio.gather(branch("left"), branch("right"))
        await emit("body", 1)

    live: list[Event] = []
    async with make_runtime(on_event=live.append) as rt:
        await rt.run(producer, id="r")
        log = [(e.data["name"], e.data["data"]) async for e in rt.events("r") if e.type == "emitted"]
    expected = {"thread": 5, "call": 5, "left": 5, "right": 5, "body": 2}
    for name, count in expected.items():
        assert [data for other, data in log if other == name] == list(range(count))
    assert (log[0], log[-1]) == (("body", 0), ("body", 1))
    assert [(e.data["name"], e.data["data"]) for e in live if e.type == "emitted"] == log, "seen live, each once"


async def test_a_def_body_emits_by_itself(make_runtime: MakeRuntime) -> None:
    @flow
    def producer(n: int) -> int:
        for i in range(n):
            emit("line", i)
        return n

    async with make_runtime() as rt:
        await rt.run(producer, 2 * CHUNKS_ENOUGH, id="r")
        assert await chunks(rt) == list(range(2 * CHUNKS_ENOUGH))


async def test_a_chunk_is_what_it_was_when_it_was_emitted(make_runtime: MakeRuntime) -> None:
    @flow
    async def producer() -> None:
        words = ["one"]
        emit("words", words)
        words.append("two")

    async with make_runtime() as rt:
        await rt.run(producer, id="r")
        assert await chunks(rt) == [["one"]]


@pytest.mark.parametrize("name", ["", 7, "x" * 201, "\ud800"])
async def test_a_chunk_needs_a_name_that_can_be_stored(make_runtime: MakeRuntime, name: Any) -> None:
    @flow
    async def producer() -> None:
        with pytest.raises(UsageError, match="a chunk is a text"):
            emit(name)

    async with make_runtime() as rt:
        await rt.run(producer, id="r")


async def test_data_that_cannot_be_stored_is_an_error_that_names_the_path(make_runtime: MakeRuntime) -> None:
    @flow
    async def producer() -> None:
        emit("good", 1)
        emit("bad", {"client": [object()]})

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"chunk 'bad'\.client\[0\]"):
            await rt.run(producer, id="r")
        assert await chunks(rt) == [1]


async def test_outside_of_a_run_emit_does_nothing() -> None:
    await emit("word", object())


# Batches


async def test_chunks_that_wait_travel_with_the_commit_of_their_step(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "CHUNKS_WAIT", 3600.0)  # however long the step takes

    def produce(state: list[int]) -> list[int]:
        for i in range(10):
            emit("n", i)
        return state

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.run(Pipeline("p", [produce, step(name="again")(produce)]), [], id="r")
        assert store.commits <= 5, "created, running, and one for each step with all of its chunks"
        assert await chunks(rt) == [*range(10), *range(10)]


@pytest.mark.parametrize("awaited", [True, False])
async def test_five_thousand_chunks_take_few_commits(
    make_runtime: MakeRuntime, make_store: MakeStore, awaited: bool
) -> None:
    @flow
    async def producer(n: int) -> None:
        for i in range(n):
            written = emit("token", i)
            if awaited:
                await written

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        began = time.monotonic()
        await rt.run(producer, 5000, id="r")
        took = time.monotonic() - began
        assert store.commits <= 5 + 5000 / CHUNKS_ENOUGH + took / CHUNKS_WAIT, f"{store.commits} in {took:.2f} s"
        assert await chunks(rt) == list(range(5000))


async def test_a_producer_that_awaits_is_held_back_while_the_store_is_slow(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    emitted: list[int] = []
    ahead: list[int] = []

    class Slow(WatchedStore):
        def try_commit(self, batch: Any, *how: Any) -> Any:
            return None

        async def commit(self, batch: Any) -> Any:
            await asyncio.sleep(0.01)
            replies = await super().commit(batch)
            written = sum(entry.kind == "emitted" for b in self.batches for c in b for entry in c.entries)
            ahead.append(len(emitted) - written)
            return replies

    @flow
    async def producer(n: int) -> None:
        for i in range(n):
            await emit("token", i)
            emitted.append(i)

    async with make_runtime(Slow(make_store())) as rt:
        await rt.run(producer, 6000, id="r")
    assert max(ahead) <= 2 * CHUNKS_ENOUGH + 2


async def test_large_chunks_are_written_as_they_come_and_hold_an_awaiting_producer_back(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    @flow
    async def producer(n: int) -> None:
        for i in range(n):
            await emit("page", {"n": i, "text": "x" * 1_000_000})

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.run(producer, 8, id="r")
        assert [page["n"] for page in await chunks(rt)] == list(range(8))
        assert all(len(page["text"]) == 1_000_000 for page in await chunks(rt))
    largest = max(sum(len(entry.body) for entry in commit.entries) for batch in store.batches for commit in batch)
    assert largest < 4_000_000


# Reading


async def test_a_follower_sees_chunks_while_the_step_still_runs(make_runtime: MakeRuntime) -> None:
    seen, begun = asyncio.Event(), asyncio.Event()

    @flow
    async def producer() -> None:
        emit("first", 1)
        begun.set()
        await seen.wait()
        emit("second", 2)

    async with make_runtime() as rt:
        await rt.start(producer, id="r")
        await begun.wait()
        names = []
        async with asyncio.timeout(10):
            async for event in rt.events("r", follow=True):
                if event.type == "emitted":
                    names.append(event.data["name"])
                    seen.set()
        assert names == ["first", "second"]


@pytest.mark.parametrize("by", ["seq", "event"])
async def test_a_reader_that_reconnects_sees_each_chunk_once_across_a_crash(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, by: str
) -> None:
    lives, crashed = 0, asyncio.Event()

    @flow
    async def producer(n: int) -> None:
        nonlocal lives
        lives += 1
        for i in range(n):
            await emit("token", i)
            if lives == 1 and i == n // 2:
                await call(len, "")  # all of them are written
                crashed.set()
                await asyncio.Event().wait()

    seen: list[Event] = []

    async def read_some(rt: Runtime, most: int) -> None:
        after: Any = 0 if not seen else (seen[-1] if by == "event" else seen[-1].seq)
        async for event in rt.events("r", after=after, follow=True):
            seen.append(event)
            if (most := most - 1) == 0:
                return

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(producer, 100, id="r")
        await crashed.wait()
        await read_some(rt, 7)
        await read_some(rt, 9)
        await kill(rt, store, clock)
    async with make_runtime() as rt, asyncio.timeout(20):
        handle = await rt.start(producer, 1, id="other")  # somebody else's events are not mixed in
        rerun = asyncio.ensure_future(rt.run(producer, 100, id="r"))
        await read_some(rt, 50)
        await read_some(rt, 1000)
        await rerun
        await handle.result()
        assert [(e.seq, e.index) for e in seen] == [(e.seq, e.index) async for e in rt.events("r")]
        assert [e.data["data"] for e in seen if e.type == "emitted"] == list(range(100))
        assert not [e for e in seen if e.type == "superseded"]


async def test_an_event_without_a_place_in_the_log_is_no_place_to_go_on_from(make_runtime: MakeRuntime) -> None:
    @flow
    async def producer() -> None:
        emit("word", 1)

    live: list[Event] = []
    async with make_runtime(on_event=live.append) as rt:
        await rt.run(producer, id="r")
        (early,) = [event for event in live if event.type == "emitted"]
        for after in (early, "3", None):
            with pytest.raises(UsageError, match="seen last"):
                _ = [event async for event in rt.events("r", after=after)]  # type: ignore[arg-type]


# Other ways


async def test_what_another_attempt_emits_again_is_kept_and_what_differs_supersedes(make_runtime: MakeRuntime) -> None:
    tries = {1: ["a", "b", "c", "d"], 2: ["a", "b", "x"]}

    @step(retry=TWICE)
    async def produce(state: None) -> None:
        for word in tries[current_run().attempt]:
            emit("word", word)
        if current_run().attempt == 1:
            raise LookupError

    live: list[Event] = []
    async with make_runtime(on_event=live.append) as rt:
        async with asyncio.TaskGroup() as group:
            run = group.create_task(rt.run(Pipeline("p", [produce]), None, id="r"))
            await _pass_time(rt, run)
        assert await chunks(rt) == ["a", "b", "c", "d", "x"]
        assert await valid(rt) == ["a", "b", "x"]
        gone = [e async for e in rt.events("r") if e.data.get("data") in ("c", "d")]
        told = [e.data async for e in rt.events("r") if e.type == "superseded"]
        assert told == [{"seqs": [e.seq for e in gone]}]
    shown = [(e.type, e.data.get("data")) for e in live if e.type in ("emitted", "superseded")]
    words = [("emitted", word) for word in "abcd"]
    assert shown == [*words, ("superseded", None), ("emitted", "x")], "live, each is told once and in this order"


async def _pass_time(rt: Runtime, run: asyncio.Task[Any]) -> None:
    clock = rt._clock
    assert isinstance(clock, ManualClock)
    while not run.done():
        clock.advance(1)
        await asyncio.sleep(0.01)


async def test_chunks_that_the_second_attempt_never_emits_are_superseded_too(make_runtime: MakeRuntime) -> None:
    @step(retry=TWICE)
    async def produce(state: None) -> None:
        emit("word", "a")
        if current_run().attempt == 1:
            emit("word", "b")
            await asyncio.gather(_say("c"))
            raise LookupError

    async def _say(word: str) -> None:
        await call(len, word)
        emit("word", word)

    async with make_runtime() as rt:
        run = asyncio.ensure_future(rt.run(Pipeline("p", [produce]), None, id="r"))
        await _pass_time(rt, run)
        await run
        assert await chunks(rt) == ["a", "b", "c"]
        assert await valid(rt) == ["a"]


async def test_a_crash_supersedes_what_comes_out_differently_but_nothing_inside_a_finished_call(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    lives, crashed = 0, asyncio.Event()

    async def inside(life: int) -> None:
        emit("inside", life)

    @flow
    async def producer() -> None:
        nonlocal lives
        lives += 1
        emit("body", "same")
        await call.options(key="k")(inside, lives)
        emit("body", lives)
        await call(len, "")
        if lives == 1:
            crashed.set()
            await asyncio.Event().wait()

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(producer, id="r")
        await crashed.wait()
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        await rt.run(producer, id="r")
        assert await chunks(rt) == ["same", 1, 1, 2]
        assert await valid(rt) == ["same", 1, 2]


async def test_what_a_finished_call_emitted_stands_when_the_call_around_it_is_made_again(
    make_runtime: MakeRuntime,
) -> None:
    tries = 0

    async def write(n: int) -> int:
        emit("word", f"paragraph {n}")
        return n

    async def chapter(n: int) -> int:
        nonlocal tries
        tries += 1
        await call(write, n)
        emit("word", f"try {tries}")
        if tries == 1:
            raise ConnectionError("no line")
        return n

    @flow
    async def book(n: int) -> int:
        return await call.options(retry=RetryPolicy(attempts=2, first_delay=0))(chapter, n)

    async with make_runtime() as rt:
        assert await rt.run(book, 1, id="r") == 1
        assert await chunks(rt) == ["paragraph 1", "try 1", "try 2"]
        assert await valid(rt) == ["paragraph 1", "try 2"]


async def test_a_run_that_was_let_go_and_woken_emits_nothing_twice(make_runtime: MakeRuntime) -> None:
    @flow
    async def producer() -> None:
        for i in range(10):
            emit("n", i)
        emit("n", await ask("how many?"))

    live: list[Event] = []
    async with make_runtime(on_event=live.append) as rt:
        run = asyncio.ensure_future(rt.run(producer, id="r"))
        async with asyncio.timeout(10):
            while (found := await rt.get("r")) is None or found.status != "waiting":
                await asyncio.sleep(0.01)
        await rt.answer("r", 10)
        await run
        assert await chunks(rt) == list(range(11))
    assert [e.data["data"] for e in live if e.type == "emitted"] == list(range(11))


async def test_a_result_that_cannot_be_stored_leaves_calls_and_chunks_for_the_next_attempt(
    make_runtime: MakeRuntime,
) -> None:
    made: list[int] = []
    results: list[Any] = [object(), "fine"]

    async def fetch() -> int:
        made.append(1)
        return 7

    @flow
    async def producer() -> Any:
        emit("n", await call(fetch))
        if len(results) == 2:
            emit("n", 8)
        return results.pop(0)

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="cannot be stored"):
            await rt.run(producer, id="r")
        assert await (await rt.resume("r")).result() == "fine"
        assert made == [1]
        assert await chunks(rt) == [7, 8]
        assert await valid(rt) == [7]


# What else is told


async def test_events_tell_what_happened_and_nothing_of_the_journals_own(make_runtime: MakeRuntime) -> None:
    @step(on_doubt="fail")
    async def pay() -> str:
        return "paid"

    @flow
    async def shop() -> None:
        await pay()
        await ask("sure?", schema=bool)

    async with make_runtime() as rt:
        run = asyncio.ensure_future(rt.run(shop, id="r"))
        async with asyncio.timeout(10):
            while (found := await rt.get("r")) is None or found.status != "waiting":
                await asyncio.sleep(0.01)
        await rt.answer("r", True)
        await run
        events = {e.type: e async for e in rt.events("r")}
        assert {"intent", "call", "wait", "waiting", "answer"} <= events.keys()
        for event in events.values():
            assert not {"of", "fits", "state", "delta"} & event.data.keys(), event
        assert events["wait"].data["question"] == "sure?"
        assert events["intent"].data["name"] == events["call"].data["name"] == "pay"


async def test_the_ledger_lists_calls_in_the_order_in_which_they_ended(make_runtime: MakeRuntime) -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def fetch(i: int) -> int:
        await gates[i].wait()
        if i < 2:
            gates[i + 1].set()
        return i

    @flow
    async def fan() -> None:
        calls = [asyncio.ensure_future(call.options(key=str(i))(fetch, i)) for i in (2, 1, 0)]
        gates[0].set()
        await asyncio.gather(*calls)

    async with make_runtime() as rt:
        await rt.run(fan, id="r")
        lines = [line async for line in rt.ledger("r")]
        assert [line.key.rpartition("=")[2] for line in lines] == ["0", "1", "2"]
        assert [line.seq for line in lines] == sorted(line.seq for line in lines)
        assert {line.status for line in lines} == {"done"}


async def test_a_call_in_doubt_stays_in_the_ledger_when_a_rewind_makes_it_again(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    begun, lives = asyncio.Event(), 0

    @step(on_doubt="fail")
    async def pay() -> None:
        nonlocal lives
        lives += 1
        if lives == 1:
            begun.set()
            await asyncio.Event().wait()

    @flow
    async def shop() -> None:
        await pay()

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(shop, id="r")
        await begun.wait()
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        rt.register(shop)
        assert [line.status async for line in rt.ledger("r")] == ["in doubt"]
        await (await rt.rewind("r@1")).result()
        assert [line.status async for line in rt.ledger("r")] == ["in doubt", "done"]


async def test_chunks_of_steps_that_were_not_saved_are_not_told_twice_after_a_crash(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    crashed, lives = asyncio.Event(), 0

    async def first(state: int) -> int:
        nonlocal lives
        lives += 1
        emit("first", "same")
        emit("first", lives)
        return state

    async def second(state: int) -> int:
        emit("second", "same")
        await call(len, "")
        if lives == 1:
            crashed.set()
            await asyncio.Event().wait()
        return state

    seldom = Pipeline("seldom", [first, second], policy=CheckpointPolicy(every_n_steps=10))
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(seldom, 0, id="r")
        await crashed.wait()
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        await rt.run(seldom, 0, id="r")
        assert await chunks(rt) == ["same", 1, "same", 2]
        assert await valid(rt) == ["same", "same", 2]
