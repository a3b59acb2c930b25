"""Graphs: which node comes next, what each leaves behind, and going on after a crash."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pydantic
import pytest

from conftest import MakeRuntime, MakeStore
from engine.graphs import State, chain
from engine.lives import Lives, Once
from holdfast import Checkpoint, End, Goto, Graph, RetryPolicy, Runtime, current_run, step
from holdfast.errors import (
    RunFailedError,
    RunWaitingError,
    StepMissingError,
    TooManyStepsError,
    UnknownTargetError,
    UsageError,
    WrongFlowError,
)
from holdfast.testing import ManualClock


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


async def checkpoints(rt: Runtime, run: str = "r1") -> list[Checkpoint]:
    return [checkpoint async for checkpoint in rt.checkpoints(run)]


# Which node comes next


async def test_edges_lead_from_node_to_node_and_a_node_without_one_ends_the_run(make_runtime: MakeRuntime) -> None:
    graph, ran = chain("line", "a", "b", "c")
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"a": 1, "b": 2, "c": 3}
        run = await rt.get("r1")
    assert ran == ["a", "b", "c"]
    assert run is not None
    assert (run.status, run.step, run.next, run.step_names, run.total_steps) == (
        "completed",
        3,
        None,
        ("a", "b", "c"),
        None,
    )


async def test_def_and_async_nodes_decorated_and_called_with_a_function(make_runtime: MakeRuntime) -> None:
    graph = Graph("kinds")

    @graph.node(start=True)
    def first(state: list[str]) -> list[str]:
        return [*state, "def"]

    @graph.node
    async def second(state: list[str]) -> list[str]:
        return [*state, "async"]

    def plain(state: list[str]) -> None:
        state.append("called with a function")

    @step(name="declared")
    async def own_step(state: list[str]) -> None:
        state.append("a step")

    assert graph.node(plain) is plain
    graph.node(own_step, name="renamed")
    graph.edge(first, second)
    graph.edge("second", plain)
    graph.edge(plain, own_step)
    async with make_runtime() as rt:
        assert await rt.run(graph, [], id="r1") == ["def", "async", "called with a function", "a step"]
    assert graph.step_names == ("first", "second", "plain", "renamed")
    assert first([]) == ["def"]  # outside of a run it is the function that it was


@pytest.mark.parametrize(("amount", "way"), [(5, "small"), (500, "large")])
async def test_both_ways_of_a_branch(make_runtime: MakeRuntime, amount: int, way: str) -> None:
    graph = Graph("branch")
    graph.node(lambda state: state, name="look", start=True)
    graph.node(lambda state: {**state, "way": "small"}, name="small")
    graph.node(lambda state: {**state, "way": "large"}, name="large")
    graph.branch("look", lambda state: state["amount"] > 100, {True: "large", False: "small"})
    async with make_runtime() as rt:
        assert await rt.run(graph, {"amount": amount}, id="r1") == {"amount": amount, "way": way}


@pytest.mark.parametrize("kind", ["bug", "question", "praise"])
async def test_a_router_with_an_async_chooser_leads_to_one_of_many(make_runtime: MakeRuntime, kind: str) -> None:
    graph = Graph("router")
    graph.node(lambda state: state, name="read", start=True)
    for name in ("bug", "question", "praise"):
        graph.node(lambda state, name=name: {**state, "desk": name}, name=f"{name} desk")

    async def route(state: State) -> str:
        await asyncio.sleep(0)
        return str(state["kind"])

    graph.branch("read", route, {name: f"{name} desk" for name in ("bug", "question", "praise")})
    async with make_runtime() as rt:
        assert (await rt.run(graph, {"kind": kind}, id="r1"))["desk"] == kind


async def test_goto_overrides_the_edge_with_its_state_or_the_one_that_is_there(make_runtime: MakeRuntime) -> None:
    graph = Graph("goto")

    @graph.node(start=True, goto=["c"])
    def a(state: State) -> Goto:
        state["a"] = "changed"
        return Goto("c")

    @graph.node
    def b(state: State) -> State:
        raise AssertionError("not on the way")

    @graph.node
    async def c(state: State) -> Goto:
        return Goto(d, {"c": state["a"]})

    @graph.node
    def d(state: State) -> State:
        return {**state, "d": True}

    graph.edge(a, b)
    graph.edge(b, d)
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == {"c": "changed", "d": True}


async def test_end_ends_the_run_with_its_result_whatever_edges_there_are(make_runtime: MakeRuntime) -> None:
    graph = Graph("end")

    @graph.node(start=True)
    def a(state: State) -> End[str]:
        state["seen"] = True
        return End("enough")

    graph.node(lambda state: state, name="b")
    graph.edge(a, "b")
    async with make_runtime() as rt:
        assert await rt.run(graph, {}, id="r1") == "enough"
        last = await rt.load("r1")
    assert last is not None
    assert (last.state, last.next, last.after) == ({"seen": True}, None, "a")


@pytest.mark.parametrize("bad", ["nowhere", None, ["no", "key"]])
async def test_a_label_that_is_not_there_fails_the_run_at_its_node_and_a_resume_goes_on(
    make_runtime: MakeRuntime, bad: Any
) -> None:
    labels = [bad, "on"]
    graph, ran = chain("labels", "a")
    graph.node(lambda state: {**state, "end": True}, name="b")
    graph.branch("a", lambda state: labels.pop(0), {"on": "b"})
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"the branch at 'a' of graph 'labels' chose .*there are: on") as info:
            await rt.run(graph, {}, id="r1")
        assert isinstance(info.value.__cause__, UnknownTargetError)
        assert await (await rt.resume("r1")).result() == {"a": 2, "end": True}
    assert ran == ["a", "a"]


async def test_a_goto_to_nowhere_fails_the_run_names_the_node_and_leaves_it_resumable(
    make_runtime: MakeRuntime,
) -> None:
    targets = ["nowhere", "b"]
    graph = Graph("lost")

    @graph.node(start=True, goto=["b"], retry=RetryPolicy(attempts=5))
    def a(state: State) -> Goto:
        return Goto(targets.pop(0))

    graph.node(lambda state: "there", name="b")
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"node 'a' of graph 'lost' chose 'nowhere'.*there are: a, b"):
            await rt.run(graph, {}, id="r1")
        assert await (await rt.resume("r1")).result() == "there"


# Loops


def counting(limit: int, once: Once | None = None, at: int = 0, **options: Any) -> tuple[Graph[Any], list[int]]:
    """A loop of two nodes that counts to `limit`."""
    graph, ran = Graph("loop", **options), list[int]()

    @graph.node(start=True)
    async def count(state: int) -> int:
        ran.append(state)
        if once is not None and state == at:
            await once.wait()
        return state + 1

    @graph.node
    def look(state: int) -> None:
        return None

    graph.node(lambda state: f"counted to {state}", name="done")
    graph.edge(count, look)
    graph.branch(look, lambda state: state < limit, {True: count, False: "done"})
    return graph, ran


async def test_the_counter_of_a_loop_survives_a_crash_in_the_middle(lives: Lives) -> None:
    once = Once()
    graph, ran = counting(6, once, at=3)
    await lives.cut(graph, 0, at=once.reached)
    assert await lives.finish(graph, 0) == "counted to 6"
    assert ran == [0, 1, 2, 3, 3, 4, 5]


async def test_max_steps_names_the_node_and_a_higher_one_lets_the_run_go_on(make_runtime: MakeRuntime) -> None:
    graph, ran = counting(10**9, max_steps=7)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"graph 'loop' has taken 7 steps and would go on with node 'look'"):
            await rt.run(graph, 0, id="r1")
        run = await rt.get("r1")
        assert run is not None
        assert (run.step, run.next) == (7, "look")
    assert ran == [0, 1, 2, 3]
    higher, _ = counting(5, max_steps=20)
    async with make_runtime() as rt:
        rt.register(higher)
        assert await (await rt.resume("r1")).result() == "counted to 5"


async def test_steps_before_a_resume_count_once(lives: Lives) -> None:
    once = Once()
    graph, ran = counting(3, once, at=2, max_steps=7)  # three rounds of two, and the end
    await lives.cut(graph, 0, at=once.reached)
    assert await lives.finish(graph, 0) == "counted to 3"
    assert ran == [0, 1, 2, 2]


async def test_too_many_steps_are_not_retried(make_runtime: MakeRuntime) -> None:
    graph, _ = counting(10**9, max_steps=2)
    async with make_runtime(retry=RetryPolicy(attempts=9, first_delay=3600)) as rt:
        with pytest.raises(RunFailedError) as info:
            await rt.run(graph, 0, id="r1")
    assert isinstance(info.value.__cause__, TooManyStepsError)


# Going on


async def test_after_a_crash_the_node_that_was_under_way_comes_first_and_every_output_is_there(lives: Lives) -> None:
    once = Once()
    graph, ran = chain("outputs", "a", "b")

    @graph.node
    async def tool(state: State) -> State:
        ran.append("tool")
        await once.wait()
        return {**state, "tool": True}

    graph.edge("b", tool)
    await lives.cut(graph, {}, at=once.reached)
    ran.clear()
    async with lives.runtime() as rt:
        before = [(point.after, point.next) for point in await checkpoints(rt)]
        assert before == [(None, "a"), ("a", "b"), ("b", "tool")]
        assert await rt.run(graph, {}, id="r1") == {"a": 1, "b": 2, "tool": True}
        outputs = {point.after: point.state for point in await checkpoints(rt)}
    assert ran == ["tool"]
    assert outputs == {None: {}, "a": {"a": 1}, "b": {"a": 1, "b": 2}, "tool": {"a": 1, "b": 2, "tool": True}}


async def test_a_node_that_is_gone_is_a_clear_error_and_the_run_stays_resumable(lives: Lives) -> None:
    once = Once()
    graph, _ = chain("changing", "a")

    @graph.node
    async def b(state: State) -> State:
        await once.wait()
        return {**state, "b": True}

    graph.edge("a", b)
    await lives.cut(graph, {}, at=once.reached)
    without, _ = chain("changing", "a", "c")
    async with lives.runtime() as rt:
        rt.register(without)
        with pytest.raises(StepMissingError, match=r"step 'b', which flow 'changing' does not have \(it has: a, c\)"):
            await rt.resume("r1")
        rt.register(graph)
        assert await (await rt.resume("r1")).result() == {"a": 1, "b": True}


async def test_a_branch_to_a_node_that_is_gone_fails_there_and_goes_on_when_it_is_back(
    make_runtime: MakeRuntime,
) -> None:
    old, _ = chain("changing", "a", "b")
    broken = Graph("changing")
    broken.node(lambda state: Goto("b", state), name="a", start=True)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="'b', which does not exist"):
            await rt.run(broken, {}, id="r1")
        rt.register(old)
        assert await (await rt.resume("r1")).result() == {"a": 1, "b": 2}


async def test_an_id_of_another_flow_is_refused_and_runs_nothing(make_runtime: MakeRuntime) -> None:
    mine, _ = chain("mine", "a")
    other, ran = chain("other", "a")
    async with make_runtime() as rt:
        await rt.run(mine, {}, id="r1")
        with pytest.raises(WrongFlowError, match="'mine', not to 'other'"):
            await rt.run(other, {}, id="r1")
    assert ran == []


async def test_a_rewind_goes_on_from_a_node_and_a_fork_with_another_state(make_runtime: MakeRuntime) -> None:
    graph, ran = chain("back", "a", "b", "c")
    async with make_runtime() as rt:
        await rt.run(graph, {}, id="r1")
        after_a = next(point for point in await checkpoints(rt) if point.after == "a")
        await (await rt.rewind(after_a.id)).result()
        assert ran == ["a", "b", "c", "b", "c"]
        forked = await rt.fork(after_a.id, id="r2", state={"other": 0})
        assert await forked.result() == {"other": 0, "b": 6, "c": 7}


# Typed state


@dataclass
class Ticket:
    text: str
    tags: list[str] = field(default_factory=list)


class Order(pydantic.BaseModel):
    amount: int
    notes: list[str] = []


async def test_a_dataclass_as_state_comes_back_as_itself_after_a_crash(lives: Lives) -> None:
    once = Once()
    graph = Graph("tickets", state=Ticket)

    @graph.node(start=True)
    async def tag(ticket: Ticket) -> Ticket:
        return Ticket(ticket.text, ["urgent"])

    @graph.node
    async def wait(ticket: Ticket) -> Ticket | Goto | End[int]:
        await once.wait()
        assert type(ticket) is Ticket
        return Goto("last", Ticket(ticket.text, [*ticket.tags, "seen"]))

    graph.node(lambda ticket: ticket.tags.append("last"), name="last")
    graph.edge(tag, wait)
    graph.edge(wait, "last")
    await lives.cut(graph, {"text": "help"}, at=once.reached)
    assert await lives.finish(graph, {"text": "help"}) == Ticket("help", ["urgent", "seen", "last"])


async def test_a_pydantic_model_as_state(make_runtime: MakeRuntime) -> None:
    graph = Graph("orders", state=Order)
    graph.node(lambda order: order.notes.append("paid"), name="pay", start=True)
    async with make_runtime() as rt:
        assert await rt.run(graph, {"amount": 3}, id="r1") == Order(amount=3, notes=["paid"])
        with pytest.raises(UsageError, match="does not fit the declared state Order"):
            await rt.run(graph, {"amount": "much"}, id="r2")
        assert await rt.get("r2") is None


# Retries, timeouts, doubt


async def test_a_node_is_retried_and_each_attempt_gets_the_state_as_it_was(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    graph, seen = Graph("shaky"), list[State]()

    @graph.node(start=True, retry=RetryPolicy(attempts=3))
    def shaky(state: State) -> None:
        seen.append(dict(state))
        state["touched"] = True
        if len(seen) < 3:
            raise ConnectionError("down")

    async with make_runtime(on_event=lambda e: clock.advance(3600) if e.type == "step_failed" else None) as rt:
        assert await rt.run(graph, {}, id="r1") == {"touched": True}
    assert seen == [{}, {}, {}]


async def test_a_step_keeps_its_options_as_a_node_and_the_node_overrides_them(make_runtime: MakeRuntime) -> None:
    @step(retry=RetryPolicy(attempts=2, first_delay=0), timeout=30)
    async def shaky(state: int) -> int:
        if current_run().attempt < 2:
            raise ConnectionError("down")
        return state + 1

    graph = Graph("options")
    graph.node(shaky, name="as it is", start=True)
    graph.node(shaky, name="once", retry=RetryPolicy(attempts=1))
    graph.edge("as it is", "once")
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="'once'"):
            await rt.run(graph, 1, id="r1")
        run = await rt.get("r1")
    assert run is not None
    assert run.step == 1


async def test_a_node_that_takes_too_long_fails(make_runtime: MakeRuntime) -> None:
    graph = Graph("slow")

    @graph.node(start=True, timeout=0.01)
    async def slow(state: State) -> None:
        await asyncio.Event().wait()

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"'slow' took longer than its timeout of 0.01 s"):
            await rt.run(graph, {}, id="r1")


async def test_a_node_in_doubt_is_not_repeated_unasked(lives: Lives) -> None:
    once, ran = Once(), list[str]()
    graph = Graph("doubt")

    @graph.node(start=True, on_doubt="ask", goto=["b"])
    async def pay(state: State) -> Goto:
        ran.append("pay")
        await once.wait()
        return Goto("b")

    graph.node(lambda state: {**state, "b": True}, name="b")
    await lives.cut(graph, {}, at=once.reached)
    async with lives.runtime() as rt:
        with pytest.raises(RunWaitingError, match="Was the call"):
            await rt.run(graph, {}, id="r1", until="settled")
        await rt.answer("r1", {"done": False})
        assert await rt.run(graph, {}, id="r1") == {"b": True}
    assert ran == ["pay", "pay"]


@pytest.mark.parametrize("outcome", ["goto", "end", "none"])
async def test_what_a_firm_node_did_to_the_state_is_found_again_though_its_commit_was_lost(
    lives: Lives, outcome: str
) -> None:
    ran, left = list[str](), asyncio.Event()
    graph = Graph("firm")

    @graph.node(start=True, on_doubt="fail", goto=["last"])
    def pay(state: State) -> Any:
        ran.append("pay")
        state["paid"] = True
        return {"goto": Goto("last"), "end": End("done"), "none": None}[outcome]

    @graph.node
    def last(state: State) -> None:
        ran.append("last")

    graph.edge(pay, last)
    async with lives.runtime() as rt:
        assert lives.store is not None

        def refuse(commit: Any) -> bool:
            """The step's own commit is lost, that of its call is not."""
            lost = any(entry.kind in ("checkpoint", "completed") for entry in commit.entries)
            if lost:
                left.set()
            return lost

        lives.store.refuse = refuse
        handle = await rt.start(graph, {}, id="r1")
        await left.wait()
        with pytest.raises(Exception, match="no space"):
            await handle.result()
    result = await lives.finish(graph, {})
    assert result == ("done" if outcome == "end" else {"paid": True})
    assert ran.count("pay") == 1
    async with lives.runtime() as rt:
        point = await rt.load("r1")
    assert point is not None
    assert point.state == {"paid": True}
