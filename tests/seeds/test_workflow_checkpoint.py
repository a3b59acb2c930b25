"""What simple_agents_workflow's checkpoints promise, in Holdfast: a graph goes on at its next node with all it has."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.lives import Lives, Once
from holdfast import End, Event, Graph, Pipeline, RetryPolicy, Runtime
from holdfast.errors import (
    InvalidIdError,
    RunFailedError,
    RunWaitingError,
    StepMissingError,
    UsageError,
    WrongFlowError,
)
from holdfast.testing import ManualClock

Scope = dict[str, Any]


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class Workflow:
    """start → model → tool → end; each node leaves its output in the scope, and `tool` stops once when asked to."""

    def __init__(self, *, stops: bool = False, name: str = "wf") -> None:
        self.ran: list[str] = []
        self.once = Once() if stops else None
        self.graph = Graph(name)
        for place, node in enumerate(("start", "model", "tool", "end")):
            self.graph.node(self._node(node), name=node, start=place == 0)
        for source, target in (("start", "model"), ("model", "tool"), ("tool", "end")):
            self.graph.edge(source, target)

    def _node(self, name: str) -> Any:
        async def body(scope: Scope) -> Scope:
            self.ran.append(name)
            if name == "tool" and self.once is not None:
                await self.once.wait()
            return {**scope, name: f"output of {name}"}

        return body


def echo(scope: Any) -> Any:
    return scope


INPUT = {"input": {"k": "v"}}
OUTPUTS = {name: f"output of {name}" for name in ("start", "model", "tool", "end")}


async def test_a_checkpoint_goes_round_on_files_is_readable_and_can_be_deleted(tmp_path: Path) -> None:
    workflow = Workflow(stops=True)
    assert workflow.once is not None
    async with Runtime(f"file:{tmp_path}", grace=0) as rt:
        await rt.start(workflow.graph, INPUT, id="run-1")
        await workflow.once.reached.wait()
    async with Runtime(f"file:{tmp_path}") as rt:
        saved = await rt.load("run-1")
        run = await rt.get("run-1")
        assert saved is not None
        assert run is not None
        assert (saved.run, run.flow, saved.step, saved.next) == ("run-1", "wf", 2, "tool")
        assert saved.state == INPUT | {"start": "output of start", "model": "output of model"}
        assert any(b"output of model" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
        await rt.delete("run-1")
        await rt.delete("run-1")
        assert await rt.load("run-1") is None
        assert await rt.get("run-1") is None


async def test_a_resume_executes_the_next_node_first_and_every_earlier_output_is_still_there(lives: Lives) -> None:
    workflow = Workflow(stops=True)
    assert workflow.once is not None
    await lives.cut(workflow.graph, INPUT, at=workflow.once.reached)
    workflow.ran.clear()
    assert await lives.finish(workflow.graph, INPUT) == INPUT | OUTPUTS
    assert workflow.ran == ["tool", "end"]
    async with lives.runtime() as rt:
        outputs = {point.after: point.state async for point in rt.checkpoints("r1")}
    assert list(outputs) == [None, "start", "model", "tool", "end"]
    assert outputs["model"] == INPUT | {"start": "output of start", "model": "output of model"}


async def test_an_id_is_no_path(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        with pytest.raises(InvalidIdError):
            await rt.start(Workflow().graph, INPUT, id="../../etc/passwd")


@pytest.mark.parametrize(("amount", "way"), [(1, "then"), (100, "else")])
async def test_both_branches_of_a_condition(make_runtime: MakeRuntime, amount: int, way: str) -> None:
    graph = Graph("condition")
    graph.node(echo, start=True)
    graph.node(lambda scope: {**scope, "way": "then"}, name="then")
    graph.node(lambda scope: {**scope, "way": "else"}, name="else")
    graph.branch(echo, lambda scope: scope["amount"] < 10, {True: "then", False: "else"})
    async with make_runtime() as rt:
        assert (await rt.run(graph, {"amount": amount}, id="r1"))["way"] == way


@pytest.mark.parametrize("route", ["refund", "repair", "reply"])
async def test_a_router(make_runtime: MakeRuntime, route: str) -> None:
    graph = Graph("router")
    graph.node(echo, start=True)
    for target in ("refund", "repair", "reply"):
        graph.node(lambda scope, target=target: End(target), name=target)
    graph.branch(echo, lambda scope: scope["route"], {name: name for name in ("refund", "repair", "reply")})
    async with make_runtime() as rt:
        assert await rt.run(graph, {"route": route}, id="r1") == route


async def test_the_counter_of_a_loop_survives_a_crash_in_the_middle(lives: Lives) -> None:
    once, ran = Once(), list[int]()
    graph = Graph("loop")

    @graph.node(start=True)
    async def body(scope: Scope) -> Scope:
        ran.append(scope["count"])
        if scope["count"] == 5:
            await once.wait()
        return {"count": scope["count"] + 1}

    graph.node(lambda scope: End(scope["count"]), name="end")
    graph.branch(body, lambda scope: scope["count"] < 10, {True: body, False: "end"})
    await lives.cut(graph, {"count": 0}, at=once.reached)
    assert await lives.finish(graph, {"count": 0}) == 10
    assert ran == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]


async def test_max_steps_is_a_clear_error_that_names_the_node_and_counts_once_over_resumes(lives: Lives) -> None:
    once = Once()
    graph = Graph("endless", max_steps=6)

    @graph.node(start=True)
    async def round_and_round(scope: int) -> int:
        if scope == 3:
            await once.wait()
        return scope + 1

    graph.edge(round_and_round, round_and_round)
    await lives.cut(graph, 0, at=once.reached)
    async with lives.runtime() as rt:
        with pytest.raises(RunFailedError, match="has taken 6 steps and would go on with node 'round_and_round'"):
            await rt.run(graph, 0, id="r1")
        point = await rt.load("r1")
    assert point is not None
    assert (point.step, point.state) == (6, 6)
    assert Graph("default").max_steps == 256


@pytest.mark.parametrize(
    ("merge", "opened", "result"), [("all", "abc", ["A", "B", "C"]), ("first", "b", "B"), (2, "ac", ["A", "C"])]
)
async def test_parallel_with_merge_all_first_and_quorum(
    make_runtime: MakeRuntime, merge: Any, opened: str, result: Any
) -> None:
    def branch(name: str) -> Any:
        async def body(scope: Scope) -> str:
            if name not in opened:
                await asyncio.Event().wait()
            return name.upper()

        return body

    graph = Graph("merge")
    graph.parallel("merged", [branch(name) for name in "abc"], merge=merge, start=True)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"merged": result}


async def test_a_crash_after_one_of_three_branches_runs_only_the_other_two(lives: Lives) -> None:
    ran, reached, gate = list[str](), asyncio.Event(), asyncio.Event()

    def branch(name: str) -> Any:
        async def body(scope: Scope) -> str:
            ran.append(name)
            if name != "b":
                await gate.wait()
            return name.upper()

        return body

    def on_event(event: Event) -> None:
        if event.type == "call":
            reached.set()

    graph = Graph("three")
    graph.parallel("merged", [branch(name) for name in "abc"], start=True)
    await lives.cut(graph, {}, at=reached, on_event=on_event)
    ran.clear()
    gate.set()
    assert await lives.finish(graph, {}) == {"merged": ["A", "B", "C"]}
    assert sorted(ran) == ["a", "c"]


async def test_a_map_of_100_items_cut_off_in_the_middle_and_its_reduce(lives: Lives) -> None:
    ran, finished = Counter[int](), set[int]()
    reached, gate = asyncio.Event(), asyncio.Event()

    async def double(n: int) -> int:
        ran[n] += 1
        if n >= 40:
            await gate.wait()
        return 2 * n

    def on_event(event: Event) -> None:
        if event.type == "call" and event.data["name"] == "double":
            finished.add(int(event.data["key"].rpartition("=")[2]))
            if len(finished) == 40:
                reached.set()

    graph = Graph("map")
    graph.map("doubled", over=lambda scope: range(100), node=double, concurrency=8, start=True)
    graph.node(lambda scope: End(sum(scope["doubled"])), name="reduce")
    graph.edge("doubled", "reduce")
    await lives.cut(graph, {}, at=reached, on_event=on_event)
    gate.set()
    assert await lives.finish(graph, {}) == 2 * sum(range(100))
    assert {ran[n] for n in finished} == {1}
    assert sum(ran.values()) <= 100 + 8


async def test_a_subgraph_is_a_child_run(make_runtime: MakeRuntime) -> None:
    inner = Workflow(name="inner")
    outer = Graph("outer")
    outer.node(inner.graph, start=True)
    async with make_runtime() as rt:
        assert await rt.run(outer, INPUT, id="r1") == INPUT | OUTPUTS
        (child,) = [run async for run in rt.list(parent="r1")]
    assert (child.flow, child.status, child.step) == ("inner", "completed", 4)


async def test_a_human_node_suspends_and_an_answer_from_another_process_resumes_it(make_runtime: MakeRuntime) -> None:
    graph = Graph("human")
    graph.human("approval", "May it be sent?", schema=bool, start=True)
    graph.node(lambda scope: End("sent" if scope["approval"] else "kept"), name="end")
    graph.edge("approval", "end")
    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(graph, {}, id="r1", until="settled")
    async with make_runtime() as other:
        await other.answer("r1", True)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == "sent"


async def test_a_compensation_runs_when_retries_are_exhausted(make_runtime: MakeRuntime) -> None:
    ran = list[str]()
    graph = Graph("compensated")

    def undo(scope: Scope, error: Exception) -> Scope:
        ran.append("undo")
        return {"undone": str(error)}

    @graph.node(start=True, retry=RetryPolicy(attempts=3, first_delay=0), compensate=undo)
    def charge(scope: Scope) -> None:
        ran.append("charge")
        raise ConnectionError("no answer")

    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"undone": "no answer"}
    assert ran == ["charge", "charge", "charge", "undo"]


async def test_another_flows_name_and_a_node_that_no_longer_exists_are_clear_errors(lives: Lives) -> None:
    workflow = Workflow(stops=True)
    assert workflow.once is not None
    await lives.cut(workflow.graph, INPUT, at=workflow.once.reached)
    changed = Graph("wf")
    changed.node(echo, name="start", start=True)
    async with lives.runtime() as rt:
        with pytest.raises(WrongFlowError, match="'wf', not to 'other'"):
            await rt.run(Workflow(name="other").graph, INPUT, id="r1")
        with pytest.raises(StepMissingError, match="'tool'"):
            await rt.run(changed, INPUT, id="r1")
    assert await lives.finish(workflow.graph, INPUT) == INPUT | OUTPUTS


async def test_validation_lists_every_problem_at_once(make_runtime: MakeRuntime) -> None:
    graph = Graph("invalid")
    graph.node(echo, name="a")
    graph.node(echo, name="a")
    graph.node(Pipeline("inner", [echo]), name="island")
    graph.edge("a", "nowhere")
    async with make_runtime() as rt:
        with pytest.raises(UsageError) as info:
            await rt.run(graph, {}, id="r1")
        assert await rt.get("r1") is None
    for problem in ("two nodes are named 'a'", "no start node", "'nowhere', which is no node"):
        assert problem in str(info.value)
    graph.node(echo, name="b", start=True)
    with pytest.raises(UsageError, match=r"(?s)'nowhere', which is no node.*node 'island' cannot be reached"):
        graph.validate()


def test_the_picture_of_a_workflow() -> None:
    drawn = Workflow().graph.mermaid()
    assert drawn.startswith('flowchart TD\n    start(["start"]) --> n0\n')
    assert all(f'n{place}["{name}"]' in drawn for place, name in enumerate(("start", "model", "tool", "end")))
    assert '    n0 --> n1\n    n1 --> n2\n    n2 --> n3\n    n3 --> finish(["end"])\n' in drawn
