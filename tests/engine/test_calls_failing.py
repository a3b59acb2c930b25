"""How journaled calls fail and are tried again, and what of it is found after a crash."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import RetryPolicy, call, current_run, emit, flow
from holdfast.errors import CallFailedError, NotStorableError, RunFailedError
from holdfast.testing import ManualClock

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
