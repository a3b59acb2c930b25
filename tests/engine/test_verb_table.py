"""Every verb in every situation of a run: the verb table, cell by cell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from engine.situations import INPUT, LIVE, RESULT, RESUMABLE, SITUATIONS, Stage
from holdfast import Pipeline, Runtime
from holdfast.errors import (
    InputChangedError,
    RunCancelledError,
    RunExistsError,
    RunFailedError,
    RunNotFoundError,
    RunOwnedError,
    RunPausedError,
    RunWaitingError,
    VerbRefusedError,
    WrongFlowError,
)
from holdfast.store.base import Store
from holdfast.testing import ManualClock


@pytest.fixture
async def stage(
    make_runtime: Callable[..., Runtime], make_store: Callable[[], Store], clock: ManualClock
) -> AsyncIterator[Stage]:
    async with Stage(make_runtime, make_store, clock) as stage:
        yield stage


# run


@pytest.mark.parametrize("situation", LIVE)
async def test_run_joins_a_live_run_and_gives_its_result(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    joined = asyncio.ensure_future(stage.rt.run(stage.flow, INPUT, id="r1"))
    stage.gate.set()
    assert await joined == RESULT
    assert stage.calls == ["third"]


@pytest.mark.parametrize("situation", RESUMABLE)
async def test_run_continues_a_run_that_nobody_drives(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    assert await stage.rt.run(stage.flow, INPUT, id="r1") == RESULT
    done_before = [] if situation == "pending" else ["first"]
    assert done_before + stage.calls == ["first", "second", "third"]


async def test_run_waits_with_a_waiting_run(stage: Stage) -> None:
    await stage.bring_to("waiting")
    running = asyncio.ensure_future(stage.rt.run(stage.flow, INPUT, id="r1"))
    await asyncio.wait({running}, timeout=0.05)
    assert not running.done()
    assert stage.calls == []
    await stage.rt.cancel("r1")
    with pytest.raises(RunCancelledError):
        await running


async def test_run_until_settled_says_what_a_waiting_run_waits_for(stage: Stage) -> None:
    await stage.bring_to("waiting")
    with pytest.raises(RunWaitingError, match="Shall it be printed") as caught:
        await stage.rt.run(stage.flow, INPUT, id="r1", until="settled")
    assert caught.value.waiting_for == (await stage.run()).waiting_for
    assert stage.calls == []


async def test_run_takes_a_waiting_run_on_when_it_is_due_and_gives_its_result(stage: Stage) -> None:
    await stage.bring_to("waiting")
    running = asyncio.ensure_future(stage.rt.run(stage.flow, INPUT, id="r1"))
    await stage.answer()
    assert await running == RESULT
    assert stage.calls == ["second", "third"]


async def test_run_of_a_completed_run_gives_its_result_and_runs_nothing(stage: Stage) -> None:
    await stage.bring_to("completed")
    assert await stage.rt.run(stage.flow, INPUT, id="r1") == RESULT
    assert stage.calls == []


@pytest.mark.parametrize(
    ("situation", "error"),
    [("paused", RunPausedError), ("failed", RunFailedError), ("cancelled", RunCancelledError)],
)
async def test_run_raises_what_the_run_has_come_to(stage: Stage, situation: str, error: type[Exception]) -> None:
    await stage.bring_to(situation)
    with pytest.raises(error, match="r1"):
        await stage.rt.run(stage.flow, INPUT, id="r1")
    assert stage.calls == []
    assert (await stage.run()).status == situation


# resume


@pytest.mark.parametrize("situation", LIVE)
async def test_resume_of_a_live_run_is_refused_because_it_is_owned(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    with pytest.raises(RunOwnedError):
        await stage.rt.resume("r1")
    assert stage.calls == []


async def test_resume_of_a_waiting_run_says_what_it_waits_for(stage: Stage) -> None:
    await stage.bring_to("waiting")
    with pytest.raises(RunWaitingError, match="Shall it be printed"):
        await stage.rt.resume("r1")
    assert (await stage.run()).status == "waiting"


@pytest.mark.parametrize("situation", [*RESUMABLE, "paused", "failed"])
async def test_resume_continues_at_the_step_that_comes_next(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    handle = await stage.rt.resume("r1")
    assert await handle.result() == RESULT
    done_before = {"pending": [], "paused": ["first", "second"]}.get(situation, ["first"])
    assert done_before + stage.calls == ["first", "second", "third"]
    assert (await stage.run()).error is None


@pytest.mark.parametrize("situation", ["completed", "cancelled"])
async def test_resume_of_an_ended_run_is_refused_and_names_the_way_on(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    with pytest.raises(VerbRefusedError, match="rewind" if situation == "completed" else "fork"):
        await stage.rt.resume("r1")
    assert (await stage.run()).status == situation
    assert stage.calls == []


# pause


@pytest.mark.parametrize("situation", LIVE)
async def test_pause_of_a_live_run_acts_at_the_next_safe_point(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    await stage.rt.pause("r1")
    assert (await stage.run()).status == "running"
    stage.gate.set()
    with pytest.raises(RunPausedError):
        await stage.rt.run(stage.flow, INPUT, id="r1")
    run = await stage.run()
    assert (run.status, run.step, run.next) == ("paused", 2, "third")
    assert stage.calls == []


@pytest.mark.parametrize("situation", ["waiting", *RESUMABLE, "paused"])
async def test_pause_of_a_run_that_nobody_drives_takes_effect_at_once(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    await stage.rt.pause("r1")
    assert (await stage.run()).status == "paused"
    handle = await stage.rt.resume("r1")
    await stage.answer()
    assert await handle.result() == RESULT


@pytest.mark.parametrize("situation", ["completed", "failed", "cancelled"])
async def test_pause_of_an_ended_run_is_refused(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    with pytest.raises(VerbRefusedError, match=f"it is {situation}"):
        await stage.rt.pause("r1")
    assert (await stage.run()).status == situation


# cancel


@pytest.mark.parametrize("situation", LIVE)
async def test_cancel_of_a_live_run_acts_at_the_next_safe_point(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    await stage.rt.cancel("r1", "enough")
    with pytest.raises(RunCancelledError, match="enough"):
        await stage.rt.run(stage.flow, INPUT, id="r1")
    run = await stage.run()
    assert (run.status, run.step, run.error) == ("cancelled", 1, "enough")
    assert stage.calls == []


@pytest.mark.parametrize("situation", ["waiting", *RESUMABLE, "paused"])
async def test_cancel_of_a_run_that_nobody_drives_takes_effect_at_once(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    await stage.rt.cancel("r1", "enough")
    run = await stage.run()
    assert (run.status, run.error) == ("cancelled", "enough")
    assert run.ended_at is not None
    assert stage.calls == []


@pytest.mark.parametrize("situation", ["completed", "failed"])
async def test_cancel_of_an_ended_run_is_refused(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    with pytest.raises(VerbRefusedError, match=f"it is {situation}"):
        await stage.rt.cancel("r1")
    assert (await stage.run()).status == situation


async def test_cancel_of_a_cancelled_run_changes_nothing(stage: Stage) -> None:
    await stage.bring_to("cancelled")
    before = await stage.run()
    await stage.rt.cancel("r1", "another reason")
    assert await stage.run() == before


# rewind


@pytest.mark.parametrize("situation", LIVE)
async def test_rewind_of_a_live_run_is_refused_because_it_is_owned(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    with pytest.raises(RunOwnedError):
        await stage.rt.rewind("r1@1")
    assert stage.calls == []


@pytest.mark.parametrize("situation", ["waiting", *RESUMABLE, "paused", "completed", "failed"])
async def test_rewind_goes_on_from_the_older_checkpoint(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    handle = await stage.rt.rewind("r1@1")
    await stage.answer()
    assert await handle.result() == RESULT
    assert stage.calls == ["first", "second", "third"]
    run = await stage.run()
    assert (run.status, run.waiting_for, run.error) == ("completed", None, None)


async def test_rewind_of_a_cancelled_run_is_refused_and_a_fork_works(stage: Stage) -> None:
    await stage.bring_to("cancelled")
    with pytest.raises(VerbRefusedError, match="fork"):
        await stage.rt.rewind("r1@1")
    assert await (await stage.rt.fork("r1@1", id="r2")).result() == RESULT
    assert (await stage.run()).status == "cancelled"


# delete


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_delete_removes_every_run_but_a_live_one(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    if situation in LIVE:
        with pytest.raises(VerbRefusedError, match="Cancel it first"):
            await stage.rt.delete("r1")
        assert (await stage.run()).status == "running"
    else:
        await stage.rt.delete("r1")
        await stage.rt.delete("r1")
        assert await stage.rt.get("r1") is None


# start, another input, another flow, no such run


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_start_with_an_id_that_is_taken_is_an_error(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    with pytest.raises(RunExistsError, match="r1"):
        await stage.rt.start(stage.flow, INPUT, id="r1")
    assert stage.calls == []


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_run_with_another_input_is_an_error_and_nothing_runs(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    before = await stage.run()
    with pytest.raises(InputChangedError, match=r"run r1 .* under this very id"):
        await stage.rt.run(stage.flow, {"topic": "waves"}, id="r1")
    assert await stage.run() == before
    assert stage.calls == []


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_run_with_another_flow_is_an_error_and_nothing_runs(stage: Stage, situation: str) -> None:
    await stage.bring_to(situation)
    before = await stage.run()
    with pytest.raises(WrongFlowError, match="'report'"):
        await stage.rt.run(Pipeline("summary", [stage.first]), INPUT, id="r1")
    assert await stage.run() == before
    assert stage.calls == []


async def test_run_without_an_input_goes_on_with_the_stored_one(stage: Stage) -> None:
    await stage.bring_to("interrupted")
    assert await stage.rt.run(stage.flow, id="r1") == RESULT


@pytest.mark.parametrize("verb", ["resume", "rewind", "pause", "cancel", "fork"])
async def test_a_verb_on_a_run_that_is_not_there_says_so(stage: Stage, verb: str) -> None:
    with pytest.raises(RunNotFoundError, match="r1"):
        await getattr(stage.rt, verb)("r1")
