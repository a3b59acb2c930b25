"""Children: spawned once, found again, waited for without a process, cancelled with their parent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import CheckpointPolicy, Pipeline, Run, RunStatus, Runtime, ask, blocking, call, flow, spawn
from holdfast.engine import waking
from holdfast.errors import (
    HoldfastError,
    InputChangedError,
    RunCancelledError,
    RunExistsError,
    RunFailedError,
    RunNotFoundError,
    RunWaitingError,
    UsageError,
    WrongFlowError,
)
from holdfast.model import Mail, Posted
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore, kill

ran: list[Any] = []


class Gate:
    """Opened by the test; whoever comes to it is counted."""

    def __init__(self) -> None:
        self.open, self.reached = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.open.wait()


gate: Gate


@pytest.fixture(autouse=True)
async def _fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """What the condition gives, as soon as it is something."""
    async with asyncio.timeout(20):
        while not (found := await condition()):
            await asyncio.sleep(0.01)
    return found


async def at(rt: Runtime, run: str, *statuses: str) -> Run:
    """The run, as soon as it has one of these statuses."""

    async def there() -> Run | None:
        found = await rt.get(run)
        return found if found is not None and found.status in statuses else None

    found: Run = await until(there)
    return found


@flow
async def double(n: int) -> int:
    ran.append(n)
    return 2 * n


@flow
async def gated(n: int) -> int:
    await gate.pass_through()
    ran.append(n)
    return 2 * n


@flow
async def broken(n: int) -> int:
    raise LookupError(f"no {n}")


@flow
async def asking(question: str) -> str:
    answer = await ask(question)
    return f"{question} {answer}"


@flow
async def parent_of_gated(n: int) -> int:
    result: int = await spawn(gated, n, id="child")
    return result + 1


@flow
async def grandparent(n: int) -> int:
    result: int = await spawn(parent_of_gated, n, id="middle")
    return result


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


# Waiting


async def test_the_parent_is_let_go_while_it_waits_and_woken_when_the_child_ends(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        handle = await rt.start(parent_of_gated, 4, id="p")
        run = await at(rt, "p", "waiting")
        assert run.waiting_for == "child run child"
        assert run.owner is None
        gate.open.set()
        assert await handle.result() == 9
        assert ran == [4]


@pytest.fixture
def look_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every so often whether a child has ended without telling, as in earnest, but more often."""
    monkeypatch.setattr(waking, "CHILDREN_EVERY", 0.1)
    monkeypatch.setattr(waking, "POLL", 0.1)


class DropsChildMail(WatchedStore):
    """As if the process of the child had died between the child's end and telling the parent."""

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        return Posted.ACCEPTED if mail.kind == "child" else await super().post_mail(run, mail)


@pytest.mark.usefixtures("look_soon")
@pytest.mark.parametrize("beside", [0, 4])
async def test_a_parent_that_was_never_told_finds_out_by_itself(
    make_runtime: MakeRuntime, make_store: MakeStore, beside: int
) -> None:
    @flow
    async def parent() -> int:
        questions = [asyncio.ensure_future(ask(f"question {i}?")) for i in range(beside)]
        await asyncio.sleep(0)
        result: int = await spawn(gated, 4, id="child")
        for question in questions:
            question.cancel()
        return result

    async with make_runtime(DropsChildMail(make_store())) as rt:
        handle = await rt.start(parent, id="p")
        await at(rt, "p", "waiting")
        gate.open.set()
        assert await handle.result() == 8


async def test_one_slot_is_enough_for_a_parent_and_its_children(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> int:
        return sum(await asyncio.gather(*(spawn(double, i) for i in range(3))))

    @flow
    async def outer() -> int:
        result: int = await spawn(parent)
        return result

    async with make_runtime(concurrency=1) as rt:
        assert await rt.run(outer) == 6


async def test_a_child_that_asks_is_answered_by_its_own_id(make_runtime: MakeRuntime) -> None:
    @flow
    async def parent() -> str:
        result: str = await spawn(asking, "may I?", id="child")
        return result

    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError, match="child run child"):
            await rt.run(parent, id="p", until="settled")
        assert [one.run async for one in rt.asks()] == ["child"]
        await rt.answer("child", "yes")
        assert await rt.run(parent, id="p", until="settled") == "may I? yes"


@pytest.mark.usefixtures("look_soon")
async def test_settled_means_that_the_children_are_too(make_runtime: MakeRuntime, make_store: MakeStore) -> None:
    async with make_runtime(DropsChildMail(make_store())) as rt:
        running = asyncio.ensure_future(rt.run(parent_of_gated, 4, id="p", until="settled"))
        await at(rt, "p", "waiting")
        assert not running.done()
        gate.open.set()
        assert await running == 9, "a child that has ended without telling yet is not something from outside"


# Crashes


async def test_a_waiting_parent_that_is_run_again_takes_up_the_child_that_nobody_drives(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(parent_of_gated, 4, id="p")
        await gate.reached.wait()
        await at(rt, "p", "waiting")
        await kill(rt, store, clock)
    gate.open.set()
    async with make_runtime() as rt:
        rt.register(gated)
        assert await rt.run(parent_of_gated, 4, id="p") == 9
        assert ran == [4]


async def test_a_replayed_parent_finds_its_children_and_takes_up_those_that_nobody_awaits(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside = asyncio.Event()

    @flow
    async def parent(n: int) -> int:
        spawn(gated, 1, id="loose")
        got: int = await spawn(double, n, id="child")
        inside.set()
        await gate.open.wait()
        return got

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(parent, 4, id="p")
        await inside.wait()
        await gate.reached.wait()
        await kill(rt, store, clock)
    gate.open.set()
    async with make_runtime() as rt:
        assert await rt.run(parent, 4, id="p") == 8
        await at(rt, "loose", "completed")
        assert sorted(ran) == [1, 4]


async def test_a_child_spawned_inside_a_finished_call_is_taken_up_with_its_parent(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside = asyncio.Event()

    async def begins() -> str:
        return spawn(gated, 1, id="loose").id

    @flow
    async def parent() -> str:
        loose = await call(begins)
        inside.set()
        await gate.open.wait()
        return loose

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(parent, id="p")
        await inside.wait()
        await kill(rt, store, clock)
    gate.open.set()
    async with make_runtime() as rt:
        rt.register(gated)
        assert await rt.run(parent, id="p") == "loose"
        await at(rt, "loose", "completed")
        assert ran == [1]


# Cancelling


async def _all_cancelled(rt: Runtime) -> bool:
    return {run.id async for run in rt.list(status="cancelled")} == {"g", "middle", "child"}


async def test_cancel_reaches_children_and_grandchildren(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(grandparent, 4, id="g")
        await gate.reached.wait()
        await at(rt, "g", "waiting")
        await at(rt, "middle", "waiting")
        await rt.cancel("g", "enough")
        await until(lambda: _all_cancelled(rt))
        child = await rt.get("child")
        assert child is not None
        assert child.error == "enough"
        assert ran == []


async def test_cancel_reaches_a_tree_that_is_live(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(grandparent, 4, id="g")
        await gate.reached.wait()  # nobody has been let go yet
        await rt.cancel("g")
        await until(lambda: _all_cancelled(rt))
        assert ran == []


async def test_cancel_reaches_a_paused_child(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(grandparent, 4, id="g")
        await at(rt, "middle", "waiting")
        await rt.pause("middle")
        await at(rt, "middle", "paused")
        await rt.cancel("g")
        await until(lambda: _all_cancelled(rt))
        assert ran == []


async def test_cancel_reaches_children_that_nobody_drives(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(grandparent, 4, id="g")
        await gate.reached.wait()
        await at(rt, "g", "waiting")
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        await rt.cancel("g")
        assert await _all_cancelled(rt)


async def test_cancel_reaches_children_that_are_live_in_another_runtime(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as there, make_runtime() as here:
        await there.start(grandparent, 4, id="g")
        await gate.reached.wait()
        await at(here, "g", "waiting")
        await here.cancel("g")
        await until(lambda: _all_cancelled(here))
        assert ran == []


async def test_cancel_reaches_a_child_that_is_only_just_being_started(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        engine = rt._now().engine
        create, door = engine.creating.create, Gate()

        async def slowly(run: str, *args: Any, **kwargs: Any) -> Any:
            if run == "child":
                await door.pass_through()
            return await create(run, *args, **kwargs)

        engine.creating.create = slowly  # type: ignore[method-assign]
        await rt.start(parent_of_gated, 4, id="p")
        await door.reached.wait()
        await rt.cancel("p")
        door.open.set()
        await at(rt, "p", "cancelled")
        await at(rt, "child", "cancelled")
        assert ran == []


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


async def test_a_parent_that_is_cancelled_while_its_runtime_closes_takes_its_waiting_child_along(
    make_runtime: MakeRuntime,
) -> None:
    inside, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @flow
    async def kid(state: Any) -> Any:
        return await ask("Go on?")

    def blocks(state: Any) -> None:
        loop.call_soon_threadsafe(inside.set)
        gate.wait(10)

    @flow
    async def parent(state: Any) -> Any:
        child = spawn(kid, state, id="kid")
        await call(blocks, 1)
        return await child

    async with make_runtime() as rt:
        running = asyncio.ensure_future(rt.run(parent, 1, id="p"))
        await inside.wait()
        await until_status(rt, "kid", "waiting")
        await rt.cancel("p")
        closing = asyncio.ensure_future(rt.close())
        await asyncio.sleep(0)
        gate.set()
        await closing
        with pytest.raises(RunCancelledError):
            await running
    async with make_runtime() as rt:
        assert {run.status async for run in rt.list()} == {RunStatus.CANCELLED}


async def test_a_child_that_the_code_does_not_ask_for_any_more_does_not_wake_its_parent_all_the_time(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    asked_for = ["a", "b"]

    @flow
    async def kid(state: Any) -> Any:
        return await ask("Go on?")

    @flow
    async def parent(state: Any) -> Any:
        return await asyncio.gather(*(spawn(kid, id=run) for run in asked_for))

    async with make_runtime() as rt:
        await rt.start(parent, id="p")
        for run in ("a", "b", "p"):
            await at(rt, run, "waiting")
    asked_for.remove("a")  # the program was changed
    store = WatchedStore(make_store())
    async with make_runtime(store, recover=True) as rt:
        rt.register(parent, kid)
        await rt.answer("a", 1)
        await at(rt, "a", "completed")
        async with asyncio.timeout(10):
            with pytest.raises(RunWaitingError, match="child run b"):
                await rt.run(parent, id="p", until="settled")
        before = store.commits
        for _ in range(3):
            rt._now().waker._sweep_at = rt._now().waker._children_at = 0.0
            await rt._now().waker._look()
        assert store.commits == before
        await rt.answer("b", 2)
        assert await rt.run(parent, id="p") == [2]
