"""Compensations: run once a node's retries are exhausted, once for each time that they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.lives import Lives, Once
from holdfast import End, Event, Goto, Graph, Pipeline, RetryPolicy, current_run, step
from holdfast.errors import CallFailedError, RunCancelledError, RunFailedError, StepTimeoutError, StoreUnavailableError
from holdfast.testing import ManualClock
from waiting import until_event
from watched import WatchedStore, kill

State = dict[str, Any]


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class Booking:
    """A node that fails for as long as it is broken, and what undoes it."""

    def __init__(self, undone: Any = None) -> None:
        self.ran: list[str] = []
        self.broken = True
        self.undone = undone

    def book(self, state: State) -> State:
        self.ran.append("book")
        state["half"] = "booked"  # of a copy: the compensation does not see it
        if self.broken:
            raise ConnectionError(f"failure {self.ran.count('book')}")
        return {**state, "booked": True}

    def undo(self, state: State, error: Exception) -> Any:
        self.ran.append(f"undo {error}")
        assert "half" not in state
        state["seen"] = True
        return self.undone() if callable(self.undone) else self.undone

    def graph(self, **options: Any) -> Graph[Any]:
        graph = Graph("booking")
        options = {"compensate": self.undo, "retry": RetryPolicy(attempts=3, first_delay=0), **options}
        graph.node(self.book, start=True, goto=["apologise"], **options)
        graph.node(lambda state: {**state, "last": "confirm"}, name="confirm")
        graph.node(lambda state: {**state, "last": "apologise"}, name="apologise")
        graph.edge("book", "confirm")
        return graph


TRIED = ["book", "book", "book", "undo failure 3"]


@pytest.mark.parametrize(
    ("undone", "result"),
    [
        ({"undone": True}, {"undone": True, "last": "confirm"}),
        (lambda: Goto("apologise"), {"n": 1, "seen": True, "last": "apologise"}),
        (lambda: Goto("apologise", {"other": 1}), {"other": 1, "last": "apologise"}),
        (lambda: End("given up"), "given up"),
    ],
)
async def test_what_a_compensation_returns_counts_as_that_of_its_node(
    make_runtime: MakeRuntime, undone: Any, result: Any
) -> None:
    booking = Booking(undone)
    async with make_runtime() as rt:
        assert await rt.run(booking.graph(), {"n": 1}, id="r1") == result
    assert booking.ran == TRIED


async def test_a_compensation_that_returns_nothing_leaves_the_failure_of_its_node(make_runtime: MakeRuntime) -> None:
    booking = Booking()
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="'book': ConnectionError: failure 3"):
            await rt.run(booking.graph(), {}, id="r1")
        assert booking.ran == TRIED
        booking.broken = False
        assert await (await rt.resume("r1")).result() == {"half": "booked", "booked": True, "last": "confirm"}
    assert booking.ran == [*TRIED, "book"]


async def test_a_resumed_node_that_fails_again_is_compensated_again(make_runtime: MakeRuntime) -> None:
    booking = Booking()
    retry = RetryPolicy(attempts=9, first_delay=0)  # a compensation that gives nothing is not tried again for that
    graph = booking.graph(compensate=step(retry=retry)(booking.undo))
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(graph, {}, id="r1")
        with pytest.raises(RunFailedError, match="failure 6"):
            await (await rt.resume("r1")).result()
    assert booking.ran == [*TRIED, "book", "book", "book", "undo failure 6"]


async def test_a_node_that_succeeds_is_not_compensated_whatever_it_returns(make_runtime: MakeRuntime) -> None:
    for place, outcome in enumerate([None, {"new": 1}, Goto("b"), End("end")]):
        graph = Graph("fine")

        @graph.node(start=True, compensate=lambda state: {"undone": True}, goto=["b"])
        async def a(state: State, outcome: Any = outcome) -> Any:
            state["a"] = True
            return outcome

        graph.node(lambda state: {**state, "b": True}, name="b")
        async with make_runtime() as rt:
            result = await rt.run(graph, {}, id=f"r{place}")
        assert result == [{"a": True}, {"new": 1}, {"a": True, "b": True}, "end"][place]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_compensation_may_do_without_the_error_and_be_async(
    make_runtime: MakeRuntime, asynchronous: bool
) -> None:
    async def later(state: State) -> State:
        return {"undone": current_run().step}

    booking = Booking()
    graph = booking.graph(compensate=later if asynchronous else lambda state: {"undone": "book"})
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"undone": "book", "last": "confirm"}


async def test_a_timeout_is_compensated(make_runtime: MakeRuntime) -> None:
    graph, told = Graph("slow"), list[Exception]()

    @graph.node(start=True, timeout=0.01, compensate=lambda state, error: told.append(error) or {"late": True})
    async def slow(state: State) -> None:
        await asyncio.Event().wait()

    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"late": True}
    assert [type(error) for error in told] == [StepTimeoutError]


async def test_a_flow_as_a_node_can_be_compensated(make_runtime: MakeRuntime) -> None:
    booking = Booking({"undone": True})
    booking.undo = lambda state, error: {"undone": type(error).__name__}  # type: ignore[method-assign]
    graph = Graph("outer")
    retry = RetryPolicy(attempts=2, first_delay=0)
    graph.node(Pipeline("inner", [booking.book]), start=True, retry=retry, compensate=booking.undo)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"undone": "RunFailedError"}
        assert [run.status async for run in rt.list(parent="r1")] == ["failed"]
    assert booking.ran == ["book", "book"]


async def test_a_flow_that_takes_its_time_is_tried_as_often_as_was_said_and_then_compensated(
    make_runtime: MakeRuntime,
) -> None:
    ran, may_fail = list[str](), asyncio.Semaphore(0)

    async def book(state: State) -> None:
        ran.append("book")
        await may_fail.acquire()
        raise ConnectionError("no line")

    graph, retry = Graph("outer"), RetryPolicy(attempts=2, first_delay=0)
    graph.node(Pipeline("inner", [book]), start=True, retry=retry, compensate=lambda state: {"undone": len(ran)})
    async with make_runtime() as rt:
        handle = await rt.start(graph, {}, id="r1")
        for times in (1, 2):
            await until_event(rt, "r1", "waiting", times)
            may_fail.release()
        may_fail.release()  # for one attempt too many
        assert await handle.result() == {"undone": 2}


async def test_a_compensation_that_fails_fails_the_run_and_both_are_tried_again_by_a_resume(
    make_runtime: MakeRuntime,
) -> None:
    fails = [True]

    def undo() -> Any:
        if fails.pop() if fails else False:
            raise LookupError("cannot undo")
        return {"undone": True}

    booking = Booking(undo)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="cannot undo"):
            await rt.run(booking.graph(retry=None), {}, id="r1")
        assert await (await rt.resume("r1")).result() == {"undone": True, "last": "confirm"}
    assert booking.ran == ["book", "undo failure 1", "book", "undo failure 2"]


# Crashes


async def test_a_crash_in_the_compensation_does_not_try_the_node_again(lives: Lives) -> None:
    once, booking = Once(), Booking()

    async def undo(state: State, error: Exception) -> State:
        booking.ran.append(f"undo {type(error).__name__}: {error}")
        await once.wait()
        return {"undone": True}

    graph = booking.graph(compensate=undo)
    await lives.cut(graph, {}, at=once.reached)
    assert await lives.finish(graph, {}) == {"undone": True, "last": "confirm"}
    told = "undo ConnectionError: failure 3"
    assert booking.ran == ["book", "book", "book", told, told]


async def cut_off(lives: Lives, clock: ManualClock, graph: Graph[Any], calls: int) -> None:
    """Run until so many calls are on disk; nothing reaches the store from then on."""
    seen = list[Event]()

    def on_event(event: Event) -> None:
        seen.extend([event] if event.type == "call" else [])
        if len(seen) == calls:
            assert lives.store is not None
            lives.store.severed = True

    async with lives.runtime(on_event=on_event) as rt:
        with pytest.raises(StoreUnavailableError):
            await rt.run(graph, {}, id="r1")
        assert lives.store is not None
        await kill(rt, lives.store, clock)


async def test_a_crash_between_the_failure_and_the_compensation_does_not_try_the_node_again(
    lives: Lives, clock: ManualClock
) -> None:
    booking = Booking({"undone": True})
    graph = booking.graph()
    await cut_off(lives, clock, graph, 1)
    booking.ran.clear()
    assert await lives.finish(graph, {}) == {"undone": True, "last": "confirm"}
    assert booking.ran == ["undo failure 3"]


async def test_a_crash_after_the_compensation_runs_neither_again(lives: Lives, clock: ManualClock) -> None:
    booking = Booking(lambda: Goto("apologise"))
    graph = booking.graph()
    await cut_off(lives, clock, graph, 2)
    assert await lives.finish(graph, {}) == {"seen": True, "last": "apologise"}
    assert booking.ran == TRIED


async def test_a_failure_of_an_unknown_class_that_is_found_again_is_told_as_such(lives: Lives) -> None:
    class CardError(Exception):
        pass

    once, told = Once(), list[type]()
    graph = Graph("cards")

    async def undo(state: State, error: Exception) -> str:
        told.append(type(error))
        await once.wait()
        return "undone"

    @graph.node(start=True, compensate=undo)
    def pay(state: State) -> None:
        raise CardError("declined")

    await lives.cut(graph, {}, at=once.reached)
    assert await lives.finish(graph, {}) == "undone"
    assert told == [CardError, CallFailedError]


# What is no failure of the node


async def test_a_store_that_fails_is_not_compensated(make_runtime: MakeRuntime, make_store: MakeStore) -> None:
    booking, store = Booking({"undone": True}), WatchedStore(make_store())
    booking.broken = False
    refuse: Callable[[Any], bool] = lambda commit: any(entry.kind == "call" for entry in commit.entries)  # noqa: E731
    async with make_runtime(store) as rt:
        store.refuse = refuse
        with pytest.raises(StoreUnavailableError):
            await rt.run(booking.graph(), {}, id="r1")
        store.refuse = lambda commit: False
        assert booking.ran == ["book"]


async def test_a_cancelled_run_is_not_compensated(make_runtime: MakeRuntime) -> None:
    inside, undone = asyncio.Event(), list[str]()
    graph = Graph("cancelled")

    @graph.node(start=True, compensate=lambda state: undone.append("undone"))
    async def work(state: State) -> None:
        inside.set()
        await asyncio.Event().wait()

    async with make_runtime() as rt:
        handle = await rt.start(graph, {}, id="r1")
        await inside.wait()
        await handle.cancel()
        with pytest.raises(RunCancelledError):
            await handle.result()
    assert undone == []
