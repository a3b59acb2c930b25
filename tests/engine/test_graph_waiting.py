"""Nodes that wait: flows that run as children, and people."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.graphs import State, chain
from engine.lives import Lives, Once
from holdfast import End, Goto, Graph, Pipeline, RetryPolicy, flow
from holdfast.errors import RunWaitingError
from holdfast.testing import ManualClock
from waiting import until_status


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


# Flows as nodes


async def test_a_flow_as_a_node_is_a_child_run_whose_result_is_the_state(make_runtime: MakeRuntime) -> None:
    inner = Pipeline("inner", [lambda state: {**state, "one": 1}, lambda state: {**state, "two": 2}])

    @flow
    async def last(state: State) -> State:
        return {**state, "last": True}

    graph = Graph("outer")
    graph.node(inner, start=True)
    graph.node(last, name="the end")
    graph.edge(inner, last)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"one": 1, "two": 2, "last": True}
        children = [run async for run in rt.list(parent="r1")]
    assert {(child.flow, child.status) for child in children} == {("inner", "completed"), ("last", "completed")}


async def test_a_child_goes_on_where_it_was_and_another_process_has_its_flow_by_that_of_its_parent(
    lives: Lives,
) -> None:
    once = Once()
    inner, ran = chain("inner", "a", "b")

    @inner.node
    async def c(state: State) -> State:
        await once.wait()
        return {**state, "c": True}

    inner.edge("b", c)
    outer = Graph("outer")
    outer.node(inner, start=True)
    await lives.cut(outer, {}, at=once.reached)
    async with lives.runtime(recover=True, heartbeat=0.01) as rt:
        rt.register(outer)
        run = await until_status(rt, "r1", "completed")
        assert run.status == "completed"
        assert await rt.run(outer, {}, id="r1") == {"a": 1, "b": 2, "c": True}
    assert ran == ["a", "b"]


async def test_a_failed_child_fails_its_node_and_a_retry_goes_on_in_the_child(make_runtime: MakeRuntime) -> None:
    ran = list[str]()

    def first(state: State) -> None:
        ran.append("first")

    def shaky(state: State) -> State:
        ran.append("shaky")
        if ran.count("shaky") < 2:
            raise ConnectionError("down")
        return {"done": True}

    graph = Graph("outer")
    graph.node(Pipeline("inner", [first, shaky]), start=True, retry=RetryPolicy(attempts=2, first_delay=0))
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"done": True}
    assert ran == ["first", "shaky", "shaky"]


# People


def asking(graph: Graph[Any], **options: Any) -> Graph[Any]:
    graph.node(lambda state: {**state, "draft": "text"}, name="write", start=True)
    graph.human("approve", lambda state: f"Publish {state['draft']}?", schema=bool, **options)
    graph.edge("write", "approve")
    return graph


async def test_a_human_node_suspends_and_an_answer_from_elsewhere_lets_it_go_on(make_runtime: MakeRuntime) -> None:
    graph = asking(Graph("people"), data=lambda state: {"shown": state["draft"]})
    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError, match="Publish text"):
            await rt.run(graph, {}, id="r1", until="settled")
    async with make_runtime() as other:
        (question,) = [question async for question in other.asks()]
        assert (question.question, question.data) == ("Publish text?", {"shown": "text"})
        await other.answer("r1", True)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"draft": "text", "approve": True}


@pytest.mark.parametrize(("answer", "result"), [(True, "published"), (False, "thrown away")])
async def test_the_reduce_of_a_human_node_may_choose_the_way(
    make_runtime: MakeRuntime, answer: bool, result: str
) -> None:
    graph = asking(Graph("people"), reduce=lambda state, yes: Goto("publish") if yes else End("thrown away"))
    graph.node(lambda state: "published", name="publish")
    graph.edge("approve", "publish")
    async with make_runtime() as rt:
        handle = await rt.start(graph, {}, id="r1")
        await until_status(rt, "r1", "waiting")
        await rt.answer("r1", answer)
        assert await handle.result() == result


async def test_nobody_answers_a_human_node_in_time(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    graph = asking(Graph("people"), timeout=60, default=False)
    async with make_runtime(lease=1e9) as rt:
        handle = await rt.start(graph, {}, id="r1")
        await until_status(rt, "r1", "waiting")
        clock.advance(61)
        assert await handle.result() == {"draft": "text", "approve": False}
