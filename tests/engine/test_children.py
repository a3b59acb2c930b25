"""Children: spawned once, found by their ids, and what becomes of them is told to their parent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.offspring import at, begin_anew, double, gate, gated, ran, until
from holdfast import CheckpointPolicy, Pipeline, RunStatus, Runtime, ask, blocking, call, flow, spawn
from holdfast.errors import (
    HoldfastError,
    InputChangedError,
    RunCancelledError,
    RunExistsError,
    RunFailedError,
    RunNotFoundError,
    UsageError,
    WrongFlowError,
)
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore


@pytest.fixture(autouse=True)
async def _fresh() -> None:
    begin_anew()


@flow
async def broken(n: int) -> int:
    raise LookupError(f"no {n}")


# Results


async def test_a_child_gives_its_result_and_knows_its_parent(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent(n: int) -> int:
        child = spawn(double, n, id="child")
        assert child.id == "child"
        return 1 + await child

    async with make_runtime() as rt:
        assert await rt.run(parent, 4, id="p") == 9
        child = await rt.get("child")
        assert child is not None
        assert (child.parent, child.status, child.flow) == ("p", "completed", "double")
        assert [run.id async for run in rt.list(parent="p")] == ["child"]


async def test_several_children_run_at_once_and_come_back_in_order(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent(n: int) -> list[int]:
        return list(await asyncio.gather(*(spawn(double, i) for i in range(n))))

    async with make_runtime() as rt:
        assert await rt.run(parent, 20, id="p") == [2 * i for i in range(20)]
        assert sorted(ran) == list(range(20))
        assert len({run.id async for run in rt.list(parent="p")}) == 20


async def test_a_pipeline_can_be_a_child_and_a_step_can_be_a_parent(make_runtime: MakeRuntime) -> None:
    def add(state: dict[str, int]) -> dict[str, int]:
        return {"n": state["n"] + 1}

    inner = Pipeline("inner", [add, lambda state: {"n": state["n"] * 10}])

    async def outer(state: dict[str, int]) -> dict[str, int]:
        found: dict[str, int] = await spawn(inner, state)
        return found

    async with make_runtime() as rt:
        assert await rt.run(Pipeline("outer", [add, outer]), {"n": 1}) == {"n": 30}


async def test_def_bodies_spawn_with_the_blocking_verb(make_runtime: MakeRuntime) -> None:
    @flow
    def parent(n: int) -> int:
        children = [blocking.spawn(double, i) for i in range(n)]
        return sum(child.result() for child in children)

    async with make_runtime() as rt:
        assert await rt.run(parent, 3) == 6
        assert sorted(ran) == [0, 1, 2]


async def test_a_child_that_nobody_awaits_exists_and_runs(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> str:
        spawn(gated, 1, id="loose")
        return "done"

    async with make_runtime() as rt:
        assert await rt.run(parent, id="p") == "done"
        loose = await rt.get("loose")
        assert loose is not None
        assert loose.parent == "p"
        gate.open.set()
        assert (await at(rt, "loose", "completed")).status == RunStatus.COMPLETED


async def test_a_call_that_spawns_is_not_done_before_its_child_exists(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = WatchedStore(make_store())
    there: list[bool] = []

    async def begins() -> str:
        spawn(double, 1, id="loose")
        return "begun"

    @flow
    async def parent() -> str:
        begun = await call(begins)
        there.append((await store.read_heads(["loose"]))[0] is not None)
        return begun

    async with make_runtime(store) as rt:
        assert await rt.run(parent) == "begun"
        assert there == [True]


async def test_a_child_that_cannot_be_spawned_fails_the_step_though_nobody_awaits_it(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> None:
        spawn(double, 1, id="taken")

    async with make_runtime() as rt:
        await rt.run(double, 7, id="taken")
        with pytest.raises(RunFailedError, match="RunExistsError"):
            await rt.run(parent)


async def test_a_child_may_be_awaited_twice_and_by_two_tasks(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> list[int]:
        child = spawn(double, 1)

        async def wait() -> int:
            result: int = await child
            return result

        both = await asyncio.gather(wait(), wait())
        return [*both, await child]

    async with make_runtime() as rt:
        assert await rt.run(parent) == [2, 2, 2]
        assert ran == [1]


async def test_a_child_that_was_given_up_by_a_timeout_can_be_awaited_again(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> list[Any]:
        child = spawn(gated, 1, id="child")
        try:
            async with asyncio.timeout(0.005):  # before the run is let go
                await child
            early = True
        except TimeoutError:
            early = False
        gate.open.set()
        return [early, await child]

    async with make_runtime() as rt:
        assert await rt.run(parent) == [False, 2]


async def test_only_a_flow_can_be_spawned_and_only_inside_a_run(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> None:
        await spawn(len, 1)

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="takes a flow"):
            await rt.run(parent)
    with pytest.raises(UsageError, match="inside a run only"):
        spawn(double, 1)


async def test_a_result_that_a_parent_has_not_asked_for_yet_does_not_expire(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @flow(policy=CheckpointPolicy(ttl=60))
    async def research(state: Any) -> Any:
        return "40 pages"

    @flow
    async def book(state: Any) -> Any:
        child = spawn(research, state)
        return [await ask("Go on?"), await child]

    async with make_runtime() as rt:
        handle = await rt.start(book, 1, id="b1")
        await until_status(rt, "b1", "waiting")
        (child,) = [run async for run in rt.list(parent="b1")]
        await until_status(rt, child.id, "completed")
        clock.advance(61)
        assert await rt.prune() == 0
        await rt.answer("b1", True)
        assert await handle.result() == [True, "40 pages"]
        assert await rt.prune() == 1


# Ids


async def test_an_id_of_somebody_elses_run_is_refused(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> int:
        result: int = await spawn(double, 1, id="taken")
        return result

    async with make_runtime() as rt:
        await rt.run(double, 1, id="taken")
        with pytest.raises(RunFailedError) as caught:
            await rt.run(parent)
        assert isinstance(caught.value.__cause__, RunExistsError)


@pytest.mark.parametrize(("other", "error"), [((double, 2), InputChangedError), ((gated, 1), WrongFlowError)])
async def test_the_same_id_with_another_input_or_flow_is_refused(
    make_runtime: MakeRuntime, other: tuple[Any, int], error: type[HoldfastError]
) -> None:
    @flow
    async def parent() -> int:
        first: int = await spawn(double, 1, id="child", key="a")
        with pytest.raises(error):
            await spawn(*other, id="child", key="b")
        return first

    async with make_runtime() as rt:
        assert await rt.run(parent) == 2
        assert ran == [1]


async def test_a_child_whose_id_was_not_chosen_goes_on_with_its_input_and_that_another_is_given_is_told(
    make_runtime: MakeRuntime,
) -> None:
    """As when a type got a field since: the child that failed is that one, and no other."""
    broken, given, taken = True, 1, list[int]()

    @flow
    async def child(number: int) -> int:
        taken.append(number)
        if broken:
            raise ConnectionError("no line")
        return number

    @flow
    async def parent() -> int:
        result: int = await spawn(child, given)
        return result

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(parent, id="r1")
        broken, given = False, 2
        assert await (await rt.resume("r1")).result() == 1
        assert [event.type async for event in rt.events("r1")].count("call_changed") == 1
    assert taken == [1, 1]


async def test_rewinds_and_forks_get_children_of_their_own(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> int:
        result: int = await spawn(double, 1)
        return result

    async with make_runtime() as rt:
        await rt.run(parent, id="p")
        await (await rt.rewind("p@1")).result()
        await (await rt.fork("p@1", id="q")).result()
        assert len(ran) == 3
        assert len([run async for run in rt.list(parent="p")]) == 2
        assert len([run async for run in rt.list(parent="q")]) == 1


# Failures


async def _fails(rt: Runtime) -> None:
    gate.open.set()


async def _cancelled(rt: Runtime) -> None:
    await rt.cancel("child", "not needed")


async def _deleted(rt: Runtime) -> None:
    await rt.pause("child")
    gate.open.set()
    await at(rt, "child", "paused")
    await rt.delete("child")


@flow
async def failing_at_gate(n: int) -> int:
    await gate.pass_through()
    await call(len, "")  # where it can be paused
    raise LookupError("no such tide")


ENDS = [(_fails, RunFailedError), (_cancelled, RunCancelledError), (_deleted, RunNotFoundError)]


@pytest.mark.parametrize(("end", "error"), ENDS)
async def test_what_became_of_a_child_is_raised_in_its_parent_and_can_be_caught(
    make_runtime: MakeRuntime, end: Callable[[Runtime], Awaitable[None]], error: type[HoldfastError]
) -> None:
    @flow
    async def parent() -> list[str]:
        try:
            await spawn(failing_at_gate, 1, id="child")
        except HoldfastError as caught:
            # On replay it is the same one again: the answer below comes in another life of the parent.
            return [type(caught).__name__, caught.run_id, await ask("and now?")]  # type: ignore[attr-defined]
        return []

    async with make_runtime() as rt:
        await rt.start(parent, id="p")
        await gate.reached.wait()
        await at(rt, "p", "waiting")
        await end(rt)

        async def asked() -> bool:
            return bool([one async for one in rt.asks("p")])

        await until(asked)
        await at(rt, "p", "waiting")
        await rt.answer("p", "on")
        assert await rt.run(parent, id="p") == [error.__name__, "child", "on"]


async def test_a_childs_failure_that_nobody_catches_fails_the_parent_too(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> None:
        await spawn(broken, 3, id="child")

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="LookupError: no 3"):
            await rt.run(parent, id="p")
        child = await rt.get("child")
        assert child is not None
        assert child.status == "failed"
