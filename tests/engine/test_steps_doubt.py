"""Steps, nodes and members whose effect must not be repeated unasked: what is kept of them, and for whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import (
    End,
    Goto,
    Graph,
    Handover,
    Pipeline,
    RetryPolicy,
    Strategy,
    Team,
    Terminate,
    call,
    current_run,
    step,
)
from holdfast.errors import CallInDoubtError, RunFailedError, StepTimeoutError, UnknownTargetError
from holdfast.testing import ManualClock

State = dict[str, Any]


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


async def cut_behind_result(lives: Lives, flow: Any, input: Any) -> None:
    """Run until the result of a step is journaled, and die before its checkpoint."""
    dead = asyncio.Event()
    known = False

    def refuse(commit: Any) -> bool:
        nonlocal known
        kinds = [entry.kind for entry in commit.entries]
        if known and kinds and "call" not in kinds and lives.store is not None:
            dead.set()
            lives.store.severed = True
        known = known or "call" in kinds
        return dead.is_set()

    async with lives.runtime() as rt:
        assert lives.store is not None
        lives.store.refuse = refuse
        running = asyncio.ensure_future(rt.run(flow, input, id="r1"))
        await dead.wait()
        await asyncio.gather(rt.close(), rt.close())
        await asyncio.wait({running})
        assert running.exception() is not None
    lives.lease_runs_out()


def paying(on_doubt: Any, once: Once, keys: list[str]) -> Pipeline[Any]:
    @step(on_doubt=on_doubt)
    async def pay(state: State) -> State:
        keys.append(current_run().idempotency_key)
        await once.wait()
        return {**state, "paid": True}

    return Pipeline("order", [pay])


@pytest.mark.parametrize(("before", "after"), [("fail", "retry"), ("ask", "retry"), ("retry", "fail")])
async def test_a_step_keeps_its_idempotency_key_when_it_says_something_else_of_being_in_doubt(
    lives: Lives, before: str, after: str
) -> None:
    once, keys = Once(), list[str]()
    await lives.cut(paying(before, once, keys), {}, at=once.reached)
    assert await lives.finish(paying(after, once, keys), {}) == {"paid": True}
    assert len(keys) == 2
    assert len(set(keys)) == 1


async def test_a_step_that_finished_is_not_done_again_because_it_may_be_repeated_now(lives: Lives) -> None:
    once, keys = Once(), list[str]()
    once.reached.set()
    await cut_behind_result(lives, paying("fail", once, keys), {})
    assert await lives.finish(paying("retry", once, keys), {}) == {"paid": True}
    assert len(keys) == 1


async def test_a_call_of_the_same_name_is_not_taken_for_the_step_around_it(lives: Lives) -> None:

    once = Once()

    async def pay() -> str:
        return "receipt"

    @step(name="pay")
    async def paying(state: State) -> State:
        receipt = await call(pay)
        await once.wait()
        return {"receipt": receipt}

    await lives.cut(Pipeline("order", [paying]), {}, at=once.reached)
    assert await lives.finish(Pipeline("order", [paying]), {}) == {"receipt": "receipt"}


async def test_what_a_step_that_ends_the_run_did_to_the_state_is_kept_with_its_result(lives: Lives) -> None:
    @step(on_doubt="fail")
    async def pay(state: State) -> End[str]:
        state["paid"] = True
        return End("done")

    pipeline = Pipeline("order", [pay])
    await cut_behind_result(lives, pipeline, {"a": 1})
    async with lives.runtime() as rt:
        assert await rt.run(pipeline, {"a": 1}, id="r1") == "done"
        points = [point async for point in rt.checkpoints("r1")]
        assert max(points, key=lambda point: point.seq).state == {"a": 1, "paid": True}


@pytest.mark.parametrize("choice", ["nobody", "a member by its name", "a member itself"])
async def test_a_selector_may_be_a_step_that_must_not_be_repeated(lives: Lives, choice: str) -> None:
    asked = 0

    async def write(data: list[str]) -> list[str]:
        return [*data, "written"]

    @step(on_doubt="fail")
    async def choose(data: list[str]) -> Any:
        nonlocal asked
        asked += 1
        if data:
            return None
        return {"nobody": None, "a member by its name": "write", "a member itself": write}[choice]

    team = Team("writers", [write], Strategy.SELECTOR, selector=choose)
    expected: list[str] = [] if choice == "nobody" else ["written"]
    await cut_behind_result(lives, team, [])
    assert await lives.finish(team, []) == expected
    assert asked == 1 + len(expected)


def wandering(target: str, kind: str, ran: list[str]) -> Any:
    @step(on_doubt="fail" if kind != "compensated" else "retry", name="first")
    async def first(state: State) -> Any:
        ran.append("first")
        return Handover(target, {"handed": True}) if kind == "member" else Goto(target)

    async def second(state: State) -> State:
        return {**state, "second": True}

    if kind == "member":
        return Team("wandering", [first, second])
    graph = Graph("wandering")
    undo = {"compensate": lambda state: ran.append("undone") or state} if kind == "compensated" else {}
    graph.node(first, start=True, goto=["second"], **undo)  # type: ignore[call-overload]
    graph.node(second)
    return graph


@pytest.mark.parametrize("kind", ["node", "compensated", "member"])
async def test_a_move_to_nowhere_is_mended_by_a_resume_also_where_the_step_must_not_be_repeated(
    make_runtime: MakeRuntime, kind: str
) -> None:
    ran: list[str] = []
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError) as failed:
            await rt.run(wandering("secnod", kind, ran), {}, id="r1")
        assert isinstance(failed.value.__cause__, UnknownTargetError)
        assert ran == ["first"]
    async with make_runtime() as rt:
        rt.register(wandering("second", kind, ran))
        result = await (await rt.resume("r1")).result()
    assert result == ({"handed": True, "second": True} if kind == "member" else {"second": True})
    assert ran == ["first", "first"]


def shipping(once: Once, ran: list[str], **options: Any) -> Graph[Any]:
    graph = Graph("shipping")

    async def undo(state: State) -> None:
        ran.append("undone")

    @graph.node(start=True, compensate=undo, **options)
    async def ship(state: State) -> Any:
        ran.append("shipped")
        await once.wait()
        return {**state, "tracking": "made again"}

    return graph


async def test_a_person_says_what_a_node_with_a_compensation_came_to(lives: Lives) -> None:
    once, ran = Once(), list[str]()
    graph = shipping(once, ran, on_doubt="ask")
    await lives.cut(graph, {"item": "lamp"}, at=once.reached)
    async with lives.runtime() as rt:
        running = asyncio.ensure_future(rt.run(graph, {"item": "lamp"}, id="r1"))
        async with asyncio.timeout(10):
            while not [one async for one in rt.asks("r1")]:
                await asyncio.sleep(0)
        await rt.answer("r1", {"done": True, "result": {"item": "lamp", "tracking": "T-1"}})
        assert await running == {"item": "lamp", "tracking": "T-1"}
    assert ran == ["shipped"]


async def test_a_node_in_doubt_is_not_compensated_before_somebody_has_decided(lives: Lives) -> None:
    once, ran = Once(), list[str]()
    graph = shipping(once, ran, on_doubt="fail")
    await lives.cut(graph, {}, at=once.reached)
    with pytest.raises(RunFailedError) as failed:
        await lives.finish(graph, {})
    assert isinstance(failed.value.__cause__, CallInDoubtError)
    assert ran == ["shipped"]


async def test_a_node_that_ran_out_of_time_and_may_have_been_done_is_not_compensated(
    make_runtime: MakeRuntime,
) -> None:
    ran: list[str] = []
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError) as failed:
            await rt.run(shipping(Once(), ran, on_doubt="ask", timeout=0.02), {}, id="r1")
    assert isinstance(failed.value.__cause__, StepTimeoutError)
    assert ran == ["shipped"]


async def test_the_retries_of_the_runtime_count_for_a_node_with_a_compensation_too(make_runtime: MakeRuntime) -> None:
    ran: list[str] = []
    graph = Graph("failing")

    async def undo(state: State) -> State:
        return {"undone": len(ran)}

    @graph.node(start=True, compensate=undo)
    async def fail(state: State) -> None:
        ran.append("tried")
        raise ConnectionError("no line")

    async with make_runtime(retry=RetryPolicy(attempts=3, first_delay=0, jitter=0)) as rt:
        assert await rt.run(graph, {}, id="r1") == {"undone": 3}


@pytest.mark.parametrize(("before", "after"), [("fail", "retry"), ("retry", "fail"), ("ask", "retry")])
@pytest.mark.parametrize("name", ["pay", "charge"], ids=["another name", "the name of its step"])
async def test_calls_inside_a_failed_step_are_found_again_when_it_says_something_else_of_being_in_doubt(
    make_runtime: MakeRuntime, before: str, after: str, name: str
) -> None:
    keys, broken = list[str](), True

    async def charge() -> str:
        keys.append(current_run().idempotency_key)
        return "receipt"

    def paying(on_doubt: Any) -> Pipeline[Any]:
        @step(name=name, on_doubt=on_doubt)
        async def pay(state: State) -> State:
            receipt = await call(charge)
            if broken:
                raise ConnectionError("no line")
            return {"receipt": receipt}

        return Pipeline("order", [pay])

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(paying(before), {}, id="r1")
    broken = False
    async with make_runtime() as rt:
        rt.register(paying(after))
        assert await (await rt.resume("r1")).result() == {"receipt": "receipt"}
    assert len(keys) == 1


async def test_an_attempt_that_fails_after_a_step_in_doubt_went_on_leaves_its_calls_for_the_next(lives: Lives) -> None:
    once, charged, tries = Once(), list[str](), 0

    async def charge() -> None:
        charged.append(current_run().idempotency_key)

    def paying(on_doubt: Any) -> Pipeline[Any]:
        @step(on_doubt=on_doubt, retry=RetryPolicy(attempts=2, first_delay=0, jitter=0))
        async def pay(state: State) -> State:
            nonlocal tries
            await once.wait()
            await call(charge)
            tries += 1
            if tries == 1:
                raise ConnectionError("no line")
            return {"paid": True}

        return Pipeline("order", [pay])

    await lives.cut(paying("fail"), {}, at=once.reached)
    assert await lives.finish(paying("retry"), {}) == {"paid": True}
    assert len(charged) == 1


@pytest.mark.parametrize("first", [False, True], ids=["added", "taken away"])
async def test_a_node_in_doubt_is_the_same_one_with_a_compensation_and_without(lives: Lives, first: bool) -> None:
    once, keys = Once(), list[str]()

    def shipping(on_doubt: Any, *, compensated: bool) -> Graph[Any]:
        graph, undo = Graph("shipping"), {"compensate": lambda state: {"undone": True}} if compensated else {}

        @graph.node(start=True, on_doubt=on_doubt, **undo)  # type: ignore[arg-type]
        async def ship(state: State) -> State:
            keys.append(current_run().idempotency_key)
            await once.wait()
            return {"shipped": True}

        return graph

    await lives.cut(shipping("fail", compensated=first), {}, at=once.reached)
    async with lives.runtime() as rt:
        with pytest.raises(RunFailedError) as failed:
            await rt.run(shipping("fail", compensated=not first), {}, id="r1")
        assert isinstance(failed.value.__cause__, CallInDoubtError)
    async with lives.runtime() as rt:
        rt.register(shipping("retry", compensated=not first))
        assert await (await rt.resume("r1")).result() == {"shipped": True}
    assert len(keys) == 2
    assert len(set(keys)) == 1


async def test_each_attempt_of_a_node_with_a_compensation_has_the_state_from_before(make_runtime: MakeRuntime) -> None:
    graph, tries = Graph("fees"), 0

    @graph.node(start=True, retry=RetryPolicy(attempts=3, first_delay=0), compensate=lambda state: None)
    async def add(state: State) -> None:
        nonlocal tries
        tries += 1
        state["items"].append("fee")
        if tries < 3:
            raise ConnectionError("no line")

    async with make_runtime() as rt:
        assert await rt.run(graph, {"items": []}, id="r1") == {"items": ["fee"]}


async def test_a_person_who_names_nobody_for_a_selector_in_doubt_is_asked_again(lives: Lives) -> None:
    once = Once()

    async def bob(data: list[str]) -> Terminate:
        return Terminate([*data, "bob"])

    @step(on_doubt="ask")
    async def choose(data: list[str]) -> str:
        await once.wait()
        return "bob"

    team = Team("team", [bob], Strategy.SELECTOR, selector=choose)
    await lives.cut(team, [], at=once.reached)
    async with lives.runtime() as rt:
        running, asked = asyncio.ensure_future(rt.run(team, [], id="r1")), set[str]()
        for name in ("Bob", "bob"):
            async with asyncio.timeout(10):
                while not (found := [one async for one in rt.asks("r1") if one.id not in asked]):
                    await asyncio.sleep(0)
            asked.add(found[0].id)
            await rt.answer("r1", {"done": True, "result": name}, ask=found[0].id)
        assert await running == ["bob"]
