"""Parallel and map nodes: what is merged, what is given up, and what a crash in the middle repeats."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.lives import Lives, Once
from holdfast import Event, Goto, Graph, Pipeline, RetryPolicy, Runtime, call, flow, step
from holdfast.errors import RunFailedError
from holdfast.testing import ManualClock
from waiting import until_status

State = dict[str, Any]


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


def when_done(count: int, reached: asyncio.Event) -> Callable[[Event], None]:
    """For `on_event`: sets `reached` once so many calls have their results on disk."""
    seen = list[Event]()

    def on_event(event: Event) -> None:
        if event.type == "call":
            seen.append(event)
        if len(seen) == count:
            reached.set()

    return on_event


async def ends(rt: Runtime) -> Counter[str]:
    """What the children of r1 have come to, once all have ended."""
    children = [run.id async for run in rt.list(parent="r1")]
    return Counter([(await until_status(rt, child, "completed", "cancelled")).status for child in children])


class Branches:
    """Three functions, or flows, of which those that are not open stand still."""

    def __init__(self, *opened: str, as_flows: bool = False) -> None:
        self.ran: list[str] = []
        self.gates = {name: asyncio.Event() for name in "abcx"}
        for name in opened:
            self.gates[name].set()
        self.as_flows = as_flows

    def one(self, name: str) -> Any:
        async def body(state: State) -> str:
            self.ran.append(name)
            await self.gates[name].wait()
            state["mine"] = name  # nobody else sees that
            return name.upper()

        body.__name__ = name
        return flow(name=f"flow-{name}")(body) if self.as_flows else body

    def graph(self, names: str = "abc", **options: Any) -> Graph[Any]:
        graph = Graph("parallel")
        graph.parallel("together", [self.one(name) for name in names], start=True, **options)
        return graph

    def open(self) -> None:
        for gate in self.gates.values():
            gate.set()


KINDS = pytest.mark.parametrize("as_flows", [False, True], ids=["functions", "flows"])


# Merging


@KINDS
async def test_all_results_come_in_the_order_of_the_branches(make_runtime: MakeRuntime, as_flows: bool) -> None:
    branches = Branches("c", as_flows=as_flows)
    async with make_runtime() as rt:
        handle = await rt.start(branches.graph(), {"n": 1}, id="r1")
        async with asyncio.timeout(20):
            while len(branches.ran) < 3:
                await asyncio.sleep(0)
        branches.open()
        assert await handle.result() == {"n": 1, "together": ["A", "B", "C"]}
    assert sorted(branches.ran) == ["a", "b", "c"]


@KINDS
async def test_the_first_result_is_taken_and_the_rest_given_up(make_runtime: MakeRuntime, as_flows: bool) -> None:
    branches = Branches("b", as_flows=as_flows)
    async with make_runtime() as rt:
        assert await rt.run(branches.graph(merge="first"), {}, id="r1") == {"together": "B"}
        if as_flows:
            assert await ends(rt) == {"completed": 1, "cancelled": 2}


@KINDS
async def test_a_quorum_takes_the_first_so_many_in_the_order_of_the_branches(
    make_runtime: MakeRuntime, as_flows: bool
) -> None:
    branches = Branches("c", "a", as_flows=as_flows)
    async with make_runtime() as rt:
        assert await rt.run(branches.graph(merge=2), {}, id="r1") == {"together": ["A", "C"]}


async def test_reduce_makes_the_new_state_and_may_choose_the_way(make_runtime: MakeRuntime) -> None:
    graph = Graph("reduced", state=list)
    graph.parallel("sum", [min, max, len], reduce=lambda state, results: Goto("last", results), start=True)
    graph.node(lambda state: [*state, "last"], name="last")
    graph.edge("sum", "last")
    async with make_runtime() as rt:
        assert await rt.run(graph, [3, 1, 2], id="r1") == [1, 3, 3, "last"]


async def test_a_reduce_that_changes_the_state_in_place_and_an_async_one(make_runtime: MakeRuntime) -> None:
    graph = Graph("reduced", state=list)
    graph.parallel("one", [len, sum], reduce=lambda state, results: state.extend(results), start=True)

    async def reduce(state: list[int], results: list[int]) -> list[int]:
        return [*state, results[0]]

    graph.parallel("two", [max], merge="first", reduce=reduce)
    graph.edge("one", "two")
    async with make_runtime() as rt:
        assert await rt.run(graph, [4, 5], id="r1") == [4, 5, 2, 9, 9]


async def test_functions_and_flows_def_and_async_may_be_mixed(make_runtime: MakeRuntime) -> None:
    async def asynchronous(state: State) -> int:
        return 2

    graph = Graph("mixed")
    graph.parallel("m", [lambda state: 1, asynchronous, Pipeline("inner", [lambda state: 3])], start=True)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"m": [1, 2, 3]}


# Failing


async def test_a_quorum_does_not_mind_a_failure_that_leaves_enough(make_runtime: MakeRuntime) -> None:
    def broken(state: State) -> None:
        raise ConnectionError("down")

    graph = Graph("quorum")
    graph.parallel("q", [broken, lambda state: 1, lambda state: 2], merge=2, start=True)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"q": [1, 2]}


async def test_a_failure_lets_the_other_functions_finish_and_a_resume_repeats_only_the_failed_one(
    make_runtime: MakeRuntime,
) -> None:
    branches, broken = Branches("a"), [True]

    async def shaky(state: State) -> str:
        branches.ran.append("shaky")
        if broken:
            branches.open()
            raise ConnectionError("down")
        return "mended"

    graph = Graph("failing")
    graph.parallel("p", [branches.one("a"), shaky, branches.one("b")], start=True)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="ConnectionError: down"):
            await rt.run(graph, {}, id="r1")
        broken.clear()
        assert await (await rt.resume("r1")).result() == {"p": ["A", "mended", "B"]}
    assert Counter(branches.ran) == {"a": 1, "b": 1, "shaky": 2}


async def test_the_retries_of_a_parallel_node_repeat_only_what_failed(make_runtime: MakeRuntime) -> None:
    ran = Counter[str]()

    def fine(state: State) -> str:
        ran["fine"] += 1
        return "fine"

    def shaky(state: State) -> str:
        ran["shaky"] += 1
        if ran["shaky"] < 3:
            raise ConnectionError("down")
        return "mended"

    graph = Graph("retried")
    retry = RetryPolicy(attempts=3, first_delay=0)
    graph.parallel("p", [fine, Pipeline("inner", [fine, shaky])], retry=retry, start=True)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"p": ["fine", "mended"]}
    assert ran == {"fine": 2, "shaky": 3}


async def test_a_parallel_node_that_takes_too_long_fails(make_runtime: MakeRuntime) -> None:
    graph = Branches("a").graph(timeout=0.05)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="'together' took longer than its timeout"):
            await rt.run(graph, {}, id="r1")


# Crashes


async def test_a_crash_after_one_of_three_branches_runs_only_the_other_two(lives: Lives) -> None:
    branches, reached = Branches("b"), asyncio.Event()
    graph = branches.graph()
    await lives.cut(graph, {}, at=reached, on_event=when_done(1, reached))
    assert sorted(branches.ran) == ["a", "b", "c"]
    branches.ran.clear()
    branches.open()
    assert await lives.finish(graph, {}) == {"together": ["A", "B", "C"]}
    assert sorted(branches.ran) == ["a", "c"]
    assert await lives.events("calls_unasked") == []


async def test_a_crash_after_one_of_three_children_runs_only_the_other_two(lives: Lives) -> None:
    branches, reached = Branches("b", as_flows=True), asyncio.Event()
    graph = branches.graph()

    def on_event(event: Event) -> None:
        if event.type == "completed" and len(branches.ran) == 3:
            reached.set()

    await lives.cut(graph, {}, at=reached, on_event=on_event)
    before = Counter(branches.ran)
    branches.ran.clear()
    branches.open()
    assert await lives.finish(graph, {}) == {"together": ["A", "B", "C"]}
    assert before == {"a": 1, "b": 1, "c": 1}
    assert sorted(branches.ran) == ["a", "c"]


@KINDS
@pytest.mark.parametrize("after", ["cba", "xabc"])
async def test_branches_are_known_by_their_names_when_their_order_changes_after_a_crash(
    lives: Lives, as_flows: bool, after: str
) -> None:
    branches, reached = Branches("b", "x", as_flows=as_flows), asyncio.Event()

    def on_event(event: Event) -> None:
        if event.type == ("completed" if as_flows else "call") and len(branches.ran) == 3:
            reached.set()

    await lives.cut(branches.graph(), {}, at=reached, on_event=on_event)
    branches.ran.clear()
    branches.open()
    assert await lives.finish(branches.graph(after), {}) == {"together": list(after.upper())}
    assert sorted(branches.ran) == sorted(set(after) - {"b"})


async def test_branches_of_one_name_are_told_apart(make_runtime: MakeRuntime) -> None:
    def named(name: str, result: int) -> Any:
        return step(name=name)(lambda state: result)

    names = ["a", "a", "a-2", "x" * 200, "x" * 200, "a"]
    graph = Graph("alike")
    graph.parallel("all", [named(name, place) for place, name in enumerate(names)], start=True)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"all": [0, 1, 2, 3, 4, 5]}


@KINDS
async def test_who_was_first_before_a_crash_stays_first_and_the_others_do_not_begin_again(
    lives: Lives, as_flows: bool
) -> None:
    branches, once = Branches("c", as_flows=as_flows), Once()

    async def reduce(state: State, results: list[str]) -> State:
        await once.wait()
        return {"winner": results}

    graph = branches.graph(merge="first", reduce=reduce)
    await lives.cut(graph, {}, at=once.reached)
    branches.ran.clear()
    branches.open()
    assert await lives.finish(graph, {}) == {"winner": ["C"]}
    assert branches.ran == []
    assert await lives.events("calls_unasked") == []


async def test_children_that_lost_are_cancelled_though_a_crash_came_before(lives: Lives, clock: ManualClock) -> None:
    branches = Branches("b", as_flows=True)
    graph, reached = branches.graph(merge="first"), asyncio.Event()
    async with lives.runtime() as rt:
        assert lives.store is not None
        post = lives.store.post_mail

        async def no_cancel(run: str, mail: Any) -> Any:
            if mail.kind == "cancel":
                reached.set()
                await asyncio.Event().wait()
            return await post(run, mail)

        lives.store.post_mail = no_cancel  # type: ignore[method-assign]
        running = asyncio.ensure_future(rt.run(graph, {}, id="r1"))
        await reached.wait()
        lives.store.severed = True
        await asyncio.gather(rt.close(), rt.close())
        await asyncio.wait({running})
        running.exception()
    clock.advance(60)
    async with lives.runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"together": "B"}
        assert await ends(rt) == {"completed": 1, "cancelled": 2}


# Children go on by themselves


async def test_a_fast_branch_does_not_wait_for_a_slow_one(make_runtime: MakeRuntime) -> None:
    gate, done, ran = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow(state: State) -> str:
        await gate.wait()
        return "slow"

    def walked(state: State) -> None:
        ran.append("step")

    async def last(state: State) -> str:
        done.set()
        return "fast"

    graph = Graph("speeds")
    fast = Pipeline("fast", [walked, last])
    graph.parallel("p", [Pipeline("slow", [slow]), fast], start=True)
    async with make_runtime() as rt:
        handle = await rt.start(graph, {}, id="r1")
        async with asyncio.timeout(20):
            await done.wait()
        assert not gate.is_set()
        gate.set()
        assert await handle.result() == {"p": ["slow", "fast"]}
    assert ran == ["step"]


async def test_a_parent_that_only_waits_for_children_needs_no_process(make_runtime: MakeRuntime) -> None:
    branches = Branches("a", as_flows=True)
    graph = branches.graph()
    async with make_runtime() as rt:
        handle = await rt.start(graph, {}, id="r1")
        run = await until_status(rt, "r1", "waiting")
        assert run.waiting_for is not None
        branches.open()
        assert await handle.result() == {"together": ["A", "B", "C"]}
    assert sorted(branches.ran) == ["a", "b", "c"]


# Map


@dataclass
class Item:
    number: int


@dataclass
class Square:
    of: Item
    value: int


class Squares:
    """Squares numbers, at most so many at once; from `stop` on they stand still until opened."""

    def __init__(self, stop: int = 10**9) -> None:
        self.ran = Counter[int]()
        self.now = self.most = 0
        self.stop, self.gate = stop, asyncio.Event()

    async def square(self, n: int) -> int:
        self.ran[n] += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await (self.gate.wait() if n >= self.stop else asyncio.sleep(0))
        finally:
            self.now -= 1
        return n * n

    def graph(self, node: Any = None, **options: Any) -> Graph[Any]:
        graph = Graph("squares")
        options = {"concurrency": 8, **options}
        graph.map("each", over=lambda state: range(state["n"]), node=node or self.square, start=True, **options)
        return graph


async def test_a_map_gives_the_results_in_order_with_so_many_at_once(make_runtime: MakeRuntime) -> None:
    squares = Squares()
    async with make_runtime() as rt:
        result = await rt.run(squares.graph(), {"n": 100}, id="r1")
    assert result == {"n": 100, "each": [n * n for n in range(100)]}
    assert squares.most == 8
    assert set(squares.ran.values()) == {1}


async def test_a_map_cut_off_in_the_middle_repeats_no_item_that_had_finished(lives: Lives) -> None:
    squares, reached = Squares(stop=50), asyncio.Event()
    graph = squares.graph()
    await lives.cut(
        graph, {"n": 100}, at=reached, on_event=when_done(51, reached)
    )  # with the call that lists the items
    assert set(squares.ran) == set(range(58))
    squares.gate.set()
    assert await lives.finish(graph, {"n": 100}) == {"n": 100, "each": [n * n for n in range(100)]}
    assert {n for n, times in squares.ran.items() if times == 2} == set(range(50, 58))
    assert len(squares.ran) == 100
    assert await lives.events("calls_unasked") == []


async def test_the_items_of_a_map_are_those_of_before_the_crash(lives: Lives) -> None:
    once, lists = Once(), [[1, 2], [7, 8, 9]]

    async def work(n: int) -> int:
        if n == 2:
            await once.wait()
        return n * 10

    graph = Graph("items")
    graph.map("each", over=lambda state: lists.pop(0), node=work, start=True)
    await lives.cut(graph, {}, at=once.reached)
    assert await lives.finish(graph, {}) == {"each": [10, 20]}


async def test_a_map_over_nothing_and_the_same_item_twice(make_runtime: MakeRuntime) -> None:
    graph = Graph("few")
    graph.map("each", over=lambda state: state["items"], node=lambda item: [item], start=True)
    async with make_runtime() as rt:
        assert (await rt.run(graph, {"items": []}, id="r1"))["each"] == []
        assert (await rt.run(graph, {"items": [1, 1, 1]}, id="r2"))["each"] == [[1], [1], [1]]


async def test_a_map_with_reduce_over_types_of_the_program(make_runtime: MakeRuntime) -> None:
    async def items(state: int) -> list[Item]:
        return [Item(n) for n in range(state)]

    def square(item: Item) -> Square:
        return Square(item, item.number**2)

    graph = Graph("typed")
    graph.map("each", over=items, node=square, reduce=lambda state, squares: squares, start=True)
    graph.node(lambda squares: sum(square.value for square in squares), name="sum")
    graph.edge("each", "sum")
    async with make_runtime() as rt:
        assert await rt.run(graph, 5, id="r1") == 30


async def test_a_map_over_flows_runs_children_so_many_at_once_and_finds_them_again(lives: Lives) -> None:
    squares, reached = Squares(stop=10), asyncio.Event()

    @flow
    async def child(n: int) -> int:
        return await call(squares.square, n)

    completed = list[str]()

    def on_event(event: Event) -> None:
        if event.type == "completed":
            completed.append(event.run)
        if len(completed) == 10:
            reached.set()

    graph = squares.graph(child, concurrency=4)
    await lives.cut(graph, {"n": 20}, at=reached, on_event=on_event)
    squares.gate.set()
    assert await lives.finish(graph, {"n": 20}) == {"n": 20, "each": [n * n for n in range(20)]}
    assert {squares.ran[n] for n in range(10)} == {1}
    assert squares.most <= 8  # four of each life
    async with lives.runtime() as rt:
        assert len([run async for run in rt.list(parent="r1")]) == 20


async def test_an_item_that_fails_begins_no_other_and_a_resume_goes_on_with_the_rest(make_runtime: MakeRuntime) -> None:
    ran, broken = Counter[int](), [True]

    async def work(n: int) -> int:
        ran[n] += 1
        await asyncio.sleep(0)
        if n == 5 and broken:
            raise LookupError("no 5")
        return n

    graph = Graph("failing")
    graph.map("each", over=lambda state: range(20), node=work, concurrency=4, start=True)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="no 5"):
            await rt.run(graph, {}, id="r1")
        assert len(ran) < 20
        broken.clear()
        assert await (await rt.resume("r1")).result() == {"each": list(range(20))}
    assert {n for n, times in ran.items() if times > 1} == {5}


async def test_parallel_and_map_work_where_nothing_is_kept() -> None:
    squares, branches = Squares(), Branches("a", as_flows=True)
    async with Runtime(None) as rt:
        assert (await rt.run(squares.graph(), {"n": 9}))["each"] == [n * n for n in range(9)]
        assert await rt.run(branches.graph(merge="first"), {}) == {"together": "A"}
