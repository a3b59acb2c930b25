"""Graphs as they are declared: everything that is wrong is told at once, and the picture of what is right."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import Graph, Pipeline
from holdfast.errors import UsageError
from watched import WatchedStore


def keep(state: Any) -> None:
    """Does nothing."""


@dataclass
class Ticket:
    text: str = ""


class Row(TypedDict):
    n: int


def all_wrong() -> Graph[Any]:
    """A graph with one problem of every kind."""
    graph = Graph("wrong", state=Ticket)
    graph.node(keep, name="a", start=True)
    graph.node(keep, name="b", start=True)
    graph.node(keep, name="b", goto=["gone"])
    graph.node(keep, name="island")
    graph.edge("a", "nowhere")
    graph.edge("a", "b")
    graph.edge("ghost", "a")
    graph.branch("b", "no function", {})
    graph.parallel("together", [keep])
    graph.map("each", over=keep, node=keep)
    graph.human("person", "Well?")
    graph.node(Pipeline("inner", [keep]), on_doubt="ask")
    graph.node(keep, name="pooled", executor=ProcessPoolExecutor(1), compensate=keep)
    for name in ("each", "person", "inner", "pooled"):
        graph.edge("together" if name == "each" else "each", name)
    return graph


@pytest.mark.parametrize("branches", [keep, "keep", None])
def test_the_branches_of_a_parallel_node_are_a_list(branches: Any) -> None:
    with pytest.raises(UsageError, match="parallel 'p': its branches are a list of functions and flows, not"):
        Graph("g").parallel("p", branches)


ALL = [
    "two nodes are named 'b'",
    "it has 2 start nodes (a, b): mark one with start=True",
    "the edge from 'a' leads to 'nowhere', which is no node",
    "node 'a' has two ways out",
    "an edge begins at 'ghost', which is no node",
    "the chooser of branch 'b' is not a function",
    "the branch at 'b' has no targets",
    "goto= of node 'b' names 'gone', which is no node",
    "node 'island' cannot be reached by any edge",
    "parallel 'together' needs reduce=",
    "map 'each' needs reduce=",
    "human node 'person' needs reduce=",
    "node 'inner' is a flow, which takes no on_doubt=",
    "node 'pooled' has a compensation, so neither can run in a process pool",
]


@pytest.mark.parametrize("use", [Graph.validate, Graph.mermaid, lambda graph: graph.start(Ticket())])
def test_everything_that_is_wrong_is_listed_at_once(use: Callable[[Graph[Any]], Any]) -> None:
    with pytest.raises(UsageError, match="graph 'wrong' is not right:\n") as info:
        use(all_wrong())
    missing = [problem for problem in ALL if problem not in str(info.value)]
    assert missing == []


async def test_a_wrong_graph_is_refused_by_every_verb_before_anything_is_written(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())
    graph = all_wrong()
    outer = Graph("outer")
    outer.node(graph, start=True)
    async with make_runtime(store) as rt:
        for flow in (graph, outer, outer):
            with pytest.raises(UsageError, match="graph 'wrong' is not right"):
                await rt.run(flow, {}, id="r1")
            with pytest.raises(UsageError, match="graph 'wrong' is not right"):
                await rt.start(flow, {}, id="r1")
            with pytest.raises(UsageError, match="graph 'wrong' is not right"):
                rt.register(flow)
        assert store.commits == 0
        assert await rt.get("r1") is None


async def test_what_is_added_to_a_graph_in_use_is_looked_at_again(make_runtime: MakeRuntime) -> None:
    graph = Graph("growing")
    graph.node(keep, start=True)
    async with make_runtime() as rt:
        await rt.run(graph, {}, id="r1")
        graph.edge(keep, "nowhere")
        with pytest.raises(UsageError, match="'nowhere', which is no node"):
            await rt.run(graph, {}, id="r2")
        assert await rt.get("r2") is None


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (lambda graph: None, "it has no nodes"),
        (lambda graph: graph.node(keep), "it has no start node: mark one with start=True"),
    ],
)
def test_a_graph_without_a_start(declare: Callable[[Graph[Any]], Any], problem: str) -> None:
    graph = Graph("empty")
    declare(graph)
    with pytest.raises(UsageError, match=problem):
        graph.validate()


@pytest.mark.parametrize(
    "declare",
    [
        lambda graph: graph.node("no function"),
        lambda graph: graph.node(keep, name=""),
        lambda graph: graph.node(keep, name="\ud800"),
        lambda graph: graph.node(keep, name="x" * 201),
        lambda graph: graph.node(keep, timeout=-1),
        lambda graph: graph.node(keep, retry=3),
        lambda graph: graph.node(keep, on_doubt="hope"),
        lambda graph: graph.branch("a", keep, ["a", "b"]),
        lambda graph: graph.parallel("p", []),
        lambda graph: graph.parallel("p", [keep, keep], merge=3),
        lambda graph: graph.parallel("p", [keep, keep], merge=0),
        lambda graph: graph.parallel("p", [keep, keep], merge=True),
        lambda graph: graph.parallel("p", [keep, keep], merge="most"),
        lambda graph: graph.parallel("p", ["no function"]),
        lambda graph: graph.map("m", over=keep, node=keep, concurrency=0),
        lambda graph: graph.map("m", over=keep, node="no function"),
        lambda graph: graph.map("m", over="no function", node=keep),
        lambda graph: Graph("g", max_steps=0),
        lambda graph: Graph("g", max_steps=2.5),  # type: ignore[arg-type]
        lambda graph: Graph(""),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_declared(declare: Callable[[Graph[Any]], Any]) -> None:
    graph = Graph("odd")
    with pytest.raises(UsageError):
        declare(graph)
    assert graph.step_names == ()


async def test_two_flows_of_one_name_in_a_graph_are_refused(make_runtime: MakeRuntime) -> None:
    outer = Graph("same")
    outer.node(Pipeline("same", [keep]), name="inner", start=True)
    async with make_runtime() as rt:
        with pytest.raises(UsageError, match="two different flows named 'same'"):
            rt.register(outer)


async def test_a_graph_may_be_a_node_of_itself(make_runtime: MakeRuntime) -> None:
    graph = Graph("countdown")
    graph.node(lambda n: n - 1, name="less", start=True)
    graph.node(graph, name="again")
    graph.node(keep, name="stop")
    graph.branch("less", lambda n: n > 0, {True: "again", False: "stop"})
    async with make_runtime() as rt:
        assert await rt.run(graph, 3, id="r1") == 0
        assert len([run async for run in rt.list(flow="countdown")]) == 3


@pytest.mark.parametrize("state", [None, dict, dict[str, Any], Row])
def test_a_state_that_is_a_dict_needs_no_reduce(state: Any) -> None:
    graph = Graph("dicts", state=state)
    graph.parallel("p", [keep], start=True)
    graph.validate()


async def test_a_result_that_has_no_place_in_an_undeclared_state_fails_clearly(make_runtime: MakeRuntime) -> None:
    graph = Graph("list")
    graph.parallel("p", [keep], start=True)
    async with make_runtime() as rt:
        with pytest.raises(Exception, match=r"node 'p' has no reduce=, so its result goes to state\['p'\]"):
            await rt.run(graph, [1], id="r1")


# The picture


def test_the_picture_shows_every_node_edge_and_label() -> None:
    graph = Graph("picture")
    graph.node(keep, name="read", start=True)
    graph.parallel("look up", [keep, keep])
    graph.node(Pipeline("inner", [keep]))
    graph.human("approve", "Well?")
    graph.node(keep, name="end", goto=["read"])
    graph.branch("read", keep, {"bug": "look up", "question": "inner", True: "end"})
    graph.edge("look up", "approve")
    assert graph.mermaid() == (
        "flowchart TD\n"
        '    start(["start"]) --> n0\n'
        '    n0["read"]\n'
        '    n1[/"look up"/]\n'
        '    n2[["inner"]]\n'
        '    n3[\\"approve"\\]\n'
        '    n4["end"]\n'
        '    n0 -->|"bug"| n1\n'
        '    n0 -->|"question"| n2\n'
        '    n0 -->|"True"| n4\n'
        "    n1 --> n3\n"
        "    n4 -.-> n0\n"
        '    n2 --> finish(["end"])\n'
        '    n3 --> finish(["end"])\n'
        '    n4 --> finish(["end"])\n'
    )


def test_names_and_labels_cannot_break_out_of_the_picture() -> None:
    graph = Graph("signs")
    graph.node(keep, name='a"]; click a "javascript:x"', start=True)
    graph.node(keep, name="b\n    c --> d")
    graph.branch('a"]; click a "javascript:x"', keep, {'|"x"| <b>': "b\n    c --> d"})
    drawn = graph.mermaid()
    assert drawn.count("\n") == 6
    assert all(sign not in drawn.replace('|"', "").replace('"|', "") for sign in ("<", ";;", 'javascript:x"'))
    assert "a#34;#93;#59; click a #34;javascript:x#34;" in drawn
