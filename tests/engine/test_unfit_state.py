"""A stored state that the types of a changed program do not fit: the run waits for a program that fits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Graph, Pipeline, Runtime, current_run, flow, receive, spawn
from holdfast.errors import (
    NotLoadableError,
    RunCancelledError,
    RunFailedError,
    RunPausedError,
    RunWaitingError,
    StoreUnavailableError,
)
from holdfast.model import Claim, Commit, Mail, Query
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]

UNFIT = r"state: Draft was stored without its field 'lang'\. Give the field a default, .*Run r1 is unchanged"


@dataclass
class Draft:
    n: int


@dataclass
class Changed:
    n: int
    lang: str


Changed.__qualname__ = "Draft"  # the same type in the next version of the program


class Program:
    """One version of a program: two steps, whose second one hangs as long as the test says so."""

    def __init__(self, state: Any, *, hangs: bool = False, fails: bool = False) -> None:
        self.state, self.hangs, self.fails = state, hangs, fails
        self.begun: list[tuple[str, int]] = []
        self.inside = asyncio.Event()
        self.flow = Pipeline("draft", [self.split, self.join], state=state)

    async def split(self, state: Any) -> None:
        self.begun.append(("split", current_run().attempt))
        state.n += 1

    async def join(self, state: Any) -> None:
        self.begun.append(("join", current_run().attempt))
        self.inside.set()
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise ValueError("no luck")
        state.n += 10


class CountedClaims(WatchedStore):
    """Counts how often each run was claimed."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.claimed: list[str] = []

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        claims = await super().claim_runs(query, owner)
        self.claimed += [claim.head.id for claim in claims]
        return claims


@pytest.fixture
def die(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Callable[..., Any]:
    """Leaves runs behind in their second step, as a killed process does."""

    async def leave_behind(*ids: str) -> None:
        store, old = WatchedStore(make_store()), Program(Draft, hangs=True)
        async with make_runtime(store) as rt:
            for number, run in enumerate(ids or ("r1",)):
                old.inside.clear()
                await rt.start(old.flow, Draft(number), id=run)
                await old.inside.wait()
            await kill(rt, store, clock)

    return leave_behind


async def post(store: Store, mail: Mail) -> None:
    """Ask something of r1 as a process does that the owner never hears of."""
    await store.open()
    await store.post_mail("r1", mail)
    await store.close()


async def log_of(rt: Runtime, run: str) -> list[str]:
    return [event.type async for event in rt.events(run)]


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return len([record for record in caplog.records if text in record.message])


async def test_a_run_whose_state_does_not_fit_is_left_as_it_is_for_a_program_that_fits(
    make_runtime: MakeRuntime, die: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    await die("r1", "r2")
    changed = Program(Changed)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with make_runtime(crash_limit=2) as rt:
            rt.register(changed.flow)
            before = await rt.get("r1"), await log_of(rt, "r1")
            for _ in range(3):
                assert await rt.recover() == []
                for verb in (rt.resume("r1"), rt.run(changed.flow, id="r1")):
                    with pytest.raises(NotLoadableError, match=UNFIT):
                        await verb
            assert (await rt.get("r1"), await log_of(rt, "r1")) == before
            assert (await rt.run(changed.flow, Changed(5, "en"), id="r3")).n == 16  # others are unaffected
    assert said(caplog, "run r1 was not resumed: state: Draft was stored without") == 1
    assert said(caplog, "run r2 was not resumed") == 1
    assert changed.begun == [("split", 1), ("join", 1)]
    rolled_back = Program(Draft)
    async with make_runtime(crash_limit=2) as rt:
        rt.register(rolled_back.flow)
        assert [(await handle.result()).n for handle in await rt.recover()] == [11, 12]
        assert not {"failed", "step_failed"} & {*await log_of(rt, "r1")}
    assert rolled_back.begun == [("join", 2), ("join", 2)]  # the kill is what cost an attempt


async def test_a_worker_takes_such_a_run_up_once_and_a_rolled_back_one_finishes_it(
    make_runtime: MakeRuntime, make_store: MakeStore, die: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    await die()
    changed, store = Program(Changed), CountedClaims(make_store())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with make_runtime(store, recover=True) as rt:
            rt.register(changed.flow)
            for number in range(5):  # each of them makes the worker look
                await rt.run(changed.flow, Changed(number, "en"), id=f"other-{number}")
            while not store.claimed:
                await asyncio.sleep(0)
            await rt.run(changed.flow, Changed(7, "en"), id="other-7")
            assert store.claimed.count("r1") == 1
            assert (await until_status(rt, "r1", "interrupted", "failed")).status == "interrupted"
    assert said(caplog, "run r1 was not resumed") == 1
    rolled_back = Program(Draft)
    async with make_runtime(recover=True) as rt:
        rt.register(rolled_back.flow)
        assert (await until_status(rt, "r1", "completed", "failed")).status == "completed"


async def test_a_pause_that_a_resume_would_overrule_stays_when_the_state_does_not_fit(
    make_runtime: MakeRuntime, make_store: MakeStore, die: Callable[..., Any]
) -> None:
    await die()
    await post(make_store(), Mail("pause"))
    async with make_runtime() as rt:
        rt.register(Program(Changed).flow)
        before = await log_of(rt, "r1")
        with pytest.raises(NotLoadableError, match=UNFIT):
            await rt.resume("r1")
        assert await log_of(rt, "r1") == before
    async with make_runtime() as rt:
        rt.register(Program(Draft).flow)
        (handle,) = await rt.recover()
        with pytest.raises(RunPausedError):
            await handle.result()


@pytest.mark.parametrize("ended", ["failed", "paused"])
async def test_a_resume_that_cannot_be_leaves_a_run_as_it_had_ended(make_runtime: MakeRuntime, ended: str) -> None:
    fails = ended == "failed"
    first, changed = Program(Draft, fails=fails, hangs=not fails), Program(Changed)
    async with make_runtime(grace=0) as rt:
        handle = await rt.start(first.flow, Draft(1), id="r1")
        await first.inside.wait()
        if fails:
            with pytest.raises(RunFailedError):
                await handle.result()
    async with make_runtime() as rt:
        rt.register(changed.flow)
        if not fails:
            await rt.pause("r1")
        before = await rt.get("r1"), await log_of(rt, "r1")
        for _ in range(2):
            with pytest.raises(NotLoadableError, match=UNFIT):
                await rt.resume("r1")
        assert (await rt.get("r1"), await log_of(rt, "r1")) == before
        rt.register(Program(Draft).flow)
        assert (await (await rt.resume("r1")).result()).n == 12


async def test_a_checkpoint_that_does_not_fit_is_neither_rewound_to_nor_forked_but_with_a_state_that_fits(
    make_runtime: MakeRuntime,
) -> None:
    async with make_runtime() as rt:
        await rt.run(Program(Draft).flow, Draft(1), id="r1")
    changed = Program(Changed)
    async with make_runtime() as rt:
        rt.register(changed.flow)
        before = await log_of(rt, "r1")
        for verb in (rt.rewind("r1@2"), rt.fork("r1@2", id="r2")):
            with pytest.raises(NotLoadableError, match=UNFIT):
                await verb
        assert (await log_of(rt, "r1"), await rt.get("r2")) == (before, None)
        given: Any
        for run, given in (("r3", Changed(5, "en")), ("r4", {"n": 5, "lang": "en"})):
            assert await (await rt.fork("r1@2", id=run, state=given)).result() == Changed(15, "en")


async def test_a_cancel_that_the_dead_owner_had_not_honoured_needs_no_state_that_fits(
    make_runtime: MakeRuntime, make_store: MakeStore, die: Callable[..., Any]
) -> None:
    await die()
    await post(make_store(), Mail("cancel", b'"too dear"'))
    changed = Program(Changed)
    async with make_runtime() as rt:
        rt.register(changed.flow)
        (handle,) = await rt.recover()
        with pytest.raises(RunCancelledError, match="too dear"):
            await handle.result()
    assert changed.begun == []


async def test_a_run_that_waits_keeps_what_came_for_it_until_a_program_fits(make_runtime: MakeRuntime) -> None:
    def waits(state: Any) -> Any:
        async def hear(state: Any) -> None:
            state.n += await receive("more")

        return Pipeline("draft", [hear], state=state)

    old, changed = waits(Draft), waits(Changed)
    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(old, Draft(1), id="r1", until="settled")
    async with make_runtime() as rt:
        rt.register(changed)
        await rt.send("r1", "more", 5)
        with pytest.raises(NotLoadableError, match=UNFIT):
            await rt.run(changed, id="r1")
        found = await rt.get("r1")
        assert found is not None
        assert found.status == "waiting"
    async with make_runtime() as rt:
        assert (await rt.run(old, id="r1")).n == 6


async def test_a_child_that_does_not_fit_is_tried_once_and_its_parent_goes_on_waiting(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def family(child: Program) -> Any:
        @flow
        async def parent(n: int) -> int:
            found: int = (await spawn(child.flow, child.state(n, *["en"] * (child.state is Changed)), id="r1")).n
            return found

        return parent

    store, old = WatchedStore(make_store()), Program(Draft, hangs=True)
    async with make_runtime(store) as rt:
        await rt.start(family(old), 1, id="parent")
        await old.inside.wait()
        await until_status(rt, "parent", "waiting")
        await kill(rt, store, clock)
    changed, counted = Program(Changed), CountedClaims(make_store())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with make_runtime(counted) as rt:
            rt.register(changed.flow)
            for _ in range(3):
                with pytest.raises(RunWaitingError, match="child run r1"):
                    async with asyncio.timeout(20):
                        await rt.run(family(changed), id="parent", until="settled")
            assert counted.claimed.count("r1") == 1
    assert said(caplog, "run r1 was not resumed") == 1
    async with make_runtime() as rt:
        assert await rt.run(family(Program(Draft)), id="parent") == 12


async def test_a_child_whose_step_the_program_no_longer_has_is_told_of_once_and_its_parent_goes_on_waiting(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    inside = asyncio.Event()

    async def first(n: int) -> int:
        return n + 1

    async def gone(n: int) -> int:
        inside.set()
        await asyncio.Event().wait()
        return n

    def family(*steps: Any) -> tuple[Any, Any]:
        child = Pipeline("child", [*steps])

        @flow
        async def parent(n: int) -> int:
            found: int = await spawn(child, n, id="r1")
            return found

        return parent, child

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(family(first, gone)[0], 1, id="parent")
        await inside.wait()
        await until_status(rt, "parent", "waiting")
        await kill(rt, store, clock)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with make_runtime() as rt:
            changed, child = family(first)
            rt.register(child)
            for _ in range(3):
                with pytest.raises(RunWaitingError, match="child run r1"):
                    async with asyncio.timeout(20):
                        await rt.run(changed, id="parent", until="settled")
    assert said(caplog, "run r1 was not resumed: run r1 goes on with step 'gone', which") == 1


async def test_a_live_run_whose_type_is_changed_under_it_is_handed_back_and_no_step_has_failed(
    make_runtime: MakeRuntime,
) -> None:
    program, reloaded = Program(Draft), asyncio.Event()

    async def split(state: Any) -> Any:
        await reloaded.wait()
        return Draft(state.n + 1)

    live = Pipeline("draft", [split, program.join], state=Draft)
    async with make_runtime() as rt:
        handle = await rt.start(live, Draft(1), id="r1")
        rt.register(Changed)  # as when its module is loaded again
        reloaded.set()
        with pytest.raises(NotLoadableError, match="without its field 'lang'"):
            await handle.result()
        found = await rt.get("r1")
        assert found is not None
        assert (found.status, found.next) == ("interrupted", "join")
        assert "step_failed" not in await log_of(rt, "r1")
    async with make_runtime() as rt:
        assert (await rt.run(Program(Draft).flow, id="r1")).n == 12


@pytest.mark.parametrize("compensated", [False, True])
async def test_a_step_whose_own_result_does_not_fit_is_neither_failed_nor_undone(
    make_runtime: MakeRuntime,
    make_store: MakeStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    compensated: bool,
) -> None:
    ran: list[str] = []

    def version(state: Any, *more: str) -> Any:
        async def pay(n: int) -> Any:
            ran.append("pay")
            return state(n, *more)

        async def undo(n: int) -> Any:
            ran.append("undo")
            return state(0, *more)

        graph: Graph[Any] = Graph("draft")
        graph.node(pay, start=True, on_doubt="fail", **({"compensate": undo} if compensated else {}))
        return graph

    def behind_the_result(commit: Commit) -> bool:
        kinds = [entry.kind for entry in commit.entries]
        store.severed = store.severed or (bool(ran) and bool(kinds) and not {"intent", "call"} & {*kinds})
        return store.severed

    store = WatchedStore(make_store())
    old, changed = version(Draft), version(Changed, "en")
    store.refuse = behind_the_result
    async with make_runtime(store) as rt:
        rt.register(Draft)
        with pytest.raises(StoreUnavailableError):
            await rt.run(old, 1, id="r1")
        await kill(rt, store, clock)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "holdfast"):
        counted = CountedClaims(make_store())
        async with make_runtime(counted, recover=True, crash_limit=2) as rt:
            rt.register(Changed, changed)
            await until_status(rt, "r1", "failed", "completed", "interrupted")
            with pytest.raises(NotLoadableError, match=r"result of pay.*: Draft was stored without its field 'lang'"):
                await rt.run(changed, id="r1")
            found = await rt.get("r1")
            assert found is not None
            assert found.status == "interrupted"
            assert "step_failed" not in await log_of(rt, "r1")
    assert said(caplog, "run r1 was not resumed") == 1
    async with make_runtime(crash_limit=2) as rt:
        rt.register(Draft)
        assert await rt.run(version(Draft), id="r1") == Draft(1)
    assert ran == ["pay"]
