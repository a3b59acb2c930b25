"""How journaled calls fail, are tried again and given up, and what of it is found after a crash."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import Pipeline, RetryPolicy, blocking, call, current_run, emit, flow, step
from holdfast.errors import CallAbandonedError, CallFailedError, NotStorableError, RunFailedError, StepTimeoutError
from holdfast.model import Commit, Kind, Reply
from holdfast.testing import ManualClock
from watched import WatchedStore

AT_ONCE = RetryPolicy(attempts=3, first_delay=0, jitter=0)


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class LimitError(Exception):
    """A program's own error, with something in it."""

    def __init__(self, left: int) -> None:
        super().__init__(f"{left} left")
        self.left = left


# Failures


async def test_a_failure_that_the_body_saw_is_raised_again_and_not_made_again(lives: Lives) -> None:
    made, seen, once = Counter[str](), [], Once()

    async def broken() -> None:
        made["broken"] += 1
        raise KeyError("gone", 3)

    @flow
    async def handles() -> str:
        try:
            await call(broken)
        except KeyError as error:
            seen.append(error.args)
        await once.wait()
        return "fine"

    await lives.cut(handles, at=once.reached)
    assert await lives.finish(handles) == "fine"
    assert seen == [("gone", 3)] * 2
    assert made["broken"] == 1


async def test_registered_classes_come_back_as_themselves_and_others_as_call_failed(lives: Lives) -> None:
    seen: list[Any] = []
    once = Once()

    async def over() -> None:
        raise LimitError(7)

    @flow
    async def handles() -> None:
        try:
            await call(over)
        except Exception as error:
            seen.append(error)
        await once.wait()

    await lives.cut(handles, at=once.reached)
    once.reached.clear()
    await lives.cut(handles, at=once.reached)
    async with lives.runtime() as rt:
        rt.register(LimitError)
        await rt.run(handles, id="r1")
    first, unregistered, registered = seen
    assert type(first) is LimitError
    assert type(unregistered) is CallFailedError
    assert "7 left" in str(unregistered)
    assert type(registered) is LimitError
    assert registered.left == 7


@pytest.mark.parametrize("kind", ["async", "def"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, GeneratorExit])
async def test_whatever_a_called_function_raises_is_an_error_of_the_call(
    lives: Lives, error: type[BaseException], kind: str
) -> None:
    seen: list[BaseException] = []
    once = Once()

    async def bad() -> None:
        raise error

    def bad_def() -> None:
        raise error

    @flow
    async def handles() -> str:
        try:
            await call(bad if kind == "async" else bad_def)
        except Exception as caught:
            seen.append(caught)
        await once.wait()
        return "went on"

    await lives.cut(handles, at=once.reached)
    assert await lives.finish(handles) == "went on"
    assert len(seen) == 2
    assert all(error.__name__ in str(caught) or type(caught) is error for caught in seen)


async def test_a_failure_nobody_handles_fails_the_step_and_the_next_attempt_makes_it_again(lives: Lives) -> None:
    made = Counter[str]()

    async def good() -> str:
        made["good"] += 1
        return "good"

    async def flaky() -> str:
        made["flaky"] += 1
        if made["flaky"] < 3:
            raise OSError("try later")
        return "at last"

    @flow(retry=AT_ONCE)
    async def retried() -> list[str]:
        return [await call(good), await call(flaky)]

    assert await lives.finish(retried) == ["good", "at last"]
    assert made == {"good": 1, "flaky": 3}


async def test_a_failed_run_that_is_resumed_makes_its_failed_call_again_and_no_other(lives: Lives) -> None:
    made = Counter[str]()
    mended = False

    async def good() -> str:
        made["good"] += 1
        return "good"

    async def bad() -> str:
        made["bad"] += 1
        if not mended:
            raise OSError("broken")
        return "mended"

    @flow
    async def fails() -> list[str]:
        return [await call(good), await call(bad)]

    async with lives.runtime() as rt:
        with pytest.raises(RunFailedError, match="OSError: broken"):
            await rt.run(fails, id="r1")
        mended = True
        handle = await rt.resume("r1")
        assert await handle.result() == ["good", "mended"]
    assert made == {"good": 1, "bad": 2}


# Retries of a call


async def test_a_call_is_tried_again_as_its_retry_says_and_one_line_is_written(lives: Lives) -> None:
    attempts: list[str] = []

    async def flaky() -> int:
        attempts.append(current_run().idempotency_key)
        if len(attempts) < 3:
            raise ConnectionError("no")
        return len(attempts)

    @flow
    async def patient() -> int:
        return await call.options(retry=AT_ONCE)(flaky)

    assert await lives.finish(patient) == 3
    assert len(set(attempts)) == 1
    async with lives.runtime() as rt:
        assert [(line.name, line.status) async for line in rt.ledger("r1")] == [("flaky", "done")]


async def test_the_last_failure_of_a_call_is_what_the_body_sees(lives: Lives) -> None:
    made = Counter[str]()

    async def bad() -> None:
        made["bad"] += 1
        raise ConnectionError(f"attempt {made['bad']}")

    async def never() -> None:
        made["never"] += 1
        raise ValueError("wrong")

    @flow
    async def handles() -> list[str]:
        out = []
        for fn in (bad, never):
            try:
                await call.options(retry=RetryPolicy(attempts=3, first_delay=0, never=(ValueError,)))(fn)
            except Exception as error:
                out.append(str(error))
        return out

    assert await lives.finish(handles) == ["attempt 3", "wrong"]
    assert made == {"bad": 3, "never": 1}


async def test_a_call_that_is_tried_again_finds_the_calls_inside_it(lives: Lives) -> None:
    made, once = Counter[str](), Once()

    async def part(name: str) -> str:
        made[name] += 1
        if name == "b" and made[name] < 3:
            raise ConnectionError("no")
        return name

    async def whole() -> str:
        first = await call(part, "a")
        second = await call(part, "b")
        await once.wait()
        return first + second

    @flow
    async def retried() -> str:
        return await call.options(retry=AT_ONCE)(whole)

    await lives.cut(retried, at=once.reached)
    assert await lives.finish(retried) == "ab"
    assert made == {"a": 1, "b": 3}


async def test_a_result_that_cannot_be_stored_fails_the_call_at_once_and_says_where(lives: Lives) -> None:
    made = Counter[str]()

    async def client() -> Any:
        made["client"] += 1
        return {"open": [object()]}

    @flow
    async def holds() -> str:
        try:
            await call.options(retry=AT_ONCE)(client)
        except NotStorableError as error:
            return str(error)
        return "stored"

    assert "result of client['open'][0]" in (await lives.finish(holds)).replace(".open", "['open']")
    assert made["client"] == 1


# Timeouts of a call


async def test_a_call_that_takes_too_long_fails_and_is_found_failed(lives: Lives) -> None:
    made, seen, once = Counter[str](), [], Once()

    async def slow() -> None:
        made["slow"] += 1
        await asyncio.Event().wait()

    @flow
    async def impatient() -> str:
        try:
            await call.options(timeout=0.01)(slow)
        except StepTimeoutError as error:
            seen.append(str(error))
        await once.wait()
        return "went on"

    await lives.cut(impatient, at=once.reached)
    assert await lives.finish(impatient) == "went on"
    assert made["slow"] == 1
    assert seen[0] == seen[1]


async def test_a_def_call_that_takes_too_long_is_left_behind(lives: Lives) -> None:
    release, late = threading.Event(), []

    def slow() -> str:
        release.wait()
        try:
            blocking.call(late.append, "its calls are refused")
        except BaseException as error:
            late.append(type(error).__name__)
            raise
        return "late"

    @flow
    async def impatient() -> str:
        try:
            await call.options(timeout=0.01)(slow)
        except StepTimeoutError:
            release.set()
            while not late:
                await asyncio.sleep(0.001)
        return "went on"

    assert await lives.finish(impatient) == "went on"
    assert late == ["Suspended"]


async def test_a_call_that_swallows_its_timeout_can_do_no_more_and_is_tried_again(lives: Lives) -> None:
    made, late = Counter[str](), []

    async def effect(name: str) -> str:
        made[name] += 1
        return name

    async def stubborn() -> str:
        made["stubborn"] += 1
        if made["stubborn"] == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            try:
                await call(effect, "late")
            except asyncio.CancelledError as error:
                late.append(error)
        return await call(effect, "in time")

    @flow
    async def impatient() -> str:
        return await call.options(timeout=0.5, retry=AT_ONCE)(stubborn)  # time for the commit of the second attempt

    assert await lives.finish(impatient) == "in time"
    assert len(late) == 1
    assert made == {"stubborn": 2, "in time": 1}


async def test_the_deadline_of_a_call_is_that_of_the_first_timeout_around_it(lives: Lives, clock: ManualClock) -> None:
    async def deadline() -> datetime | None:
        return current_run().deadline

    @step(timeout=30)
    async def inner() -> list[datetime | None]:
        return [await deadline(), await call(deadline), await call.options(timeout=100)(deadline)]

    @flow(timeout=50)
    async def outer() -> list[datetime | None]:
        return [await call(deadline), await call.options(timeout=100)(deadline), *await inner()]

    start = clock.now()
    expected = [datetime.fromtimestamp(start + left, UTC) for left in (50, 50, 30, 30, 30)]
    assert await lives.finish(outer) == expected


# Given up


async def test_a_call_given_up_by_a_timeout_of_the_body_is_given_up_again(lives: Lives) -> None:
    made, once = Counter[str](), Once()

    async def slow() -> None:
        made["slow"] += 1
        await asyncio.Event().wait()

    async def quick() -> str:
        made["quick"] += 1
        return "quick"

    @flow
    async def gives_up() -> str:
        try:
            async with asyncio.timeout(0.02):
                await call(slow)
        except TimeoutError:
            out = await call(quick)
        await once.wait()
        return out

    await lives.cut(gives_up, at=once.reached)
    assert await lives.finish(gives_up) == "quick"
    assert made == {"slow": 1, "quick": 1}
    async with lives.runtime() as rt:
        assert [(line.name, line.status) async for line in rt.ledger("r1")] == [
            ("slow", "abandoned"),
            ("quick", "done"),
        ]


async def test_a_call_given_up_and_not_given_up_again_raises_instead_of_standing_for_ever(lives: Lives) -> None:
    once = Once()

    async def slow() -> None:
        await asyncio.Event().wait()

    @flow
    async def gives_up() -> str:
        task = asyncio.ensure_future(call(slow))
        if not once.reached.is_set():
            await asyncio.sleep(0.01)
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await once.wait()
        except TimeoutError as error:
            return type(error).__name__
        return "?"

    await lives.cut(gives_up, at=once.reached)
    assert await lives.finish(gives_up) == CallAbandonedError.__name__


async def test_a_new_attempt_of_the_step_makes_calls_that_were_given_up_again(lives: Lives) -> None:
    made = Counter[str]()

    async def slow() -> str:
        made["slow"] += 1
        if made["slow"] == 1:
            await asyncio.Event().wait()
        return "in time"

    @flow(retry=AT_ONCE)
    async def hurried() -> str:
        async with asyncio.timeout(0.02 if not made["slow"] else 30):
            return await call(slow)

    assert await lives.finish(hurried) == "in time"
    assert made["slow"] == 2


async def test_a_task_group_that_failed_fails_the_same_way_after_a_crash(lives: Lives) -> None:
    made, seen, once = Counter[str](), [], Once()

    async def slow(name: str) -> None:
        made[name] += 1
        await asyncio.Event().wait()

    async def bad() -> None:
        made["bad"] += 1
        while made["s1"] + made["s2"] < 2:
            await asyncio.sleep(0)
        raise ValueError("one of them")

    async def plan_b() -> str:
        made["plan b"] += 1
        return "plan b"

    @flow
    async def grouped() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                for work in (call(slow, "s1"), call(bad), call(slow, "s2")):
                    group.create_task(work)
        except* ValueError as errors:
            seen.append([str(error) for error in errors.exceptions])
        out = await call(plan_b)
        await once.wait()
        return out

    await lives.cut(grouped, at=once.reached)
    assert await lives.finish(grouped) == "plan b"
    assert seen == [["one of them"]] * 2
    assert made == {"s1": 1, "s2": 1, "bad": 1, "plan b": 1}


# What a result may be


@dataclass
class Page:
    url: str
    links: tuple[str, ...] = ()


class Verdict(pydantic.BaseModel):
    good: bool
    why: str


async def test_results_come_back_as_the_types_that_the_functions_declare(lives: Lives) -> None:
    once = Once()

    async def fetch() -> Page:
        return Page("a", ("b", "c"))

    def judge(page: Page) -> Verdict:
        return Verdict(good=True, why=page.url)

    async def several() -> dict[str, list[Page | None]]:
        return {"x": [Page("z"), None]}

    async def plain() -> Any:
        return [(1, {2}), b"3", datetime(2026, 1, 2, tzinfo=UTC)]

    @flow
    async def types() -> bool:
        page = await call(fetch)
        got = [page, await call(judge, page), await call(several), await call(plain)]
        await once.wait()
        return got == [
            Page("a", ("b", "c")),
            Verdict(good=True, why="a"),
            {"x": [Page("z"), None]},
            [(1, {2}), b"3", datetime(2026, 1, 2, tzinfo=UTC)],
        ]

    await lives.cut(types, at=once.reached)
    assert await lives.finish(types) is True


class Opaque:
    """Cannot be stored, but functions may say that they return it."""


async def test_a_declared_type_that_cannot_be_stored_does_no_harm_until_it_is_returned(lives: Lives) -> None:
    async def none() -> Opaque | None:
        return None

    async def one() -> Opaque:
        return Opaque()

    @flow
    async def opaque() -> Any:
        assert await call(none) is None
        await call(one)

    with pytest.raises(RunFailedError, match="Opaque"):
        await lives.finish(opaque)


async def test_what_is_done_to_a_result_does_not_change_what_was_stored(lives: Lives) -> None:
    once = Once()

    async def words() -> list[str]:
        return ["a"]

    async def body(state: dict[str, Any]) -> dict[str, Any]:
        found = await call(words)
        found.append("b")
        await once.wait()
        return {"found": found}

    pipeline = Pipeline("p", [body])
    await lives.cut(pipeline, {}, at=once.reached)
    assert await lives.finish(pipeline, {}) == {"found": ["a", "b"]}


async def test_chunks_of_an_attempt_of_a_call_that_failed_are_superseded(lives: Lives) -> None:
    made = Counter[str]()

    async def stream() -> str:
        made["stream"] += 1
        for n in range(3 if made["stream"] == 1 else 1):
            await emit("token", n)
        if made["stream"] == 1:
            raise ConnectionError("cut")
        return "whole"

    @flow
    async def streaming() -> str:
        return await call.options(retry=AT_ONCE)(stream)

    assert await lives.finish(streaming) == "whole"
    emitted = {event.seq: event.data["data"] for event in await lives.events("emitted")}
    gone = {seq for event in await lives.events("superseded") for seq in event.data["seqs"]}
    assert [data for seq, data in emitted.items() if seq not in gone] == [0]


@pytest.mark.parametrize("on_doubt", ["retry", "fail"])
async def test_a_call_whose_step_times_out_while_its_result_is_written_is_not_made_again(
    make_runtime: MakeRuntime, make_store: MakeStore, on_doubt: Any
) -> None:
    made: list[int] = []
    writing, timed_out = asyncio.Event(), asyncio.Event()

    class Slow(WatchedStore):
        async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
            if made and not timed_out.is_set() and any(e.kind == Kind.CALL for c in batch for e in c.entries):
                writing.set()
                await timed_out.wait()
            return await super().commit(batch)

        def try_commit(self, batch: Sequence[Commit]) -> list[Reply] | None:
            return None

    async def charge(amount: int) -> int:
        made.append(amount)
        return amount

    @step(timeout=0.5, retry=AT_ONCE)  # time for the intent, which is written before
    async def pay(state: Any) -> Any:
        if made:
            timed_out.set()
        try:
            return await call.options(on_doubt=on_doubt)(charge, 20)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(timed_out.set)
            raise

    async with make_runtime(Slow(make_store())) as rt:
        assert await rt.run(Pipeline("pays", [pay]), {}, id="r1") == 20
    assert (made, writing.is_set()) == ([20], True)
