"""What a step may be and return, what it is told of its run, and that whatever it raises fails the run alone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import End, Pipeline, RetryPolicy, Runtime, current_run, step
from holdfast.errors import NotStorableError, RunFailedError, RunInterruptedError, StoreUnavailableError, UsageError
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


# What a step may be


class Appender:
    """A callable object."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, state: list[str]) -> list[str]:
        return [*state, self.word]

    async def method(self, state: list[str]) -> list[str]:
        return [*state, f"{self.word} by method"]


class AsyncAppender(Appender):
    async def __call__(self, state: list[str]) -> list[str]:  # type: ignore[override]
        await asyncio.sleep(0)
        return [*state, self.word]


def append(word: str, state: list[str]) -> list[str]:
    return [*state, word]


async def append_async(word: str, state: list[str]) -> list[str]:
    return [*state, word]


@pytest.mark.parametrize(
    ("what", "added"),
    [
        (lambda state: [*state, "lambda"], "lambda"),
        (lambda state: append_async("coroutine of a lambda", state), "coroutine of a lambda"),
        (functools.partial(append, "partial"), "partial"),
        (functools.partial(append_async, "async partial"), "async partial"),
        (Appender("object"), "object"),
        (AsyncAppender("async object"), "async object"),
        (Appender("bound").method, "bound by method"),
        (step(name="named")(functools.partial(append, "named partial")), "named partial"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_any_callable_is_a_step(make_runtime: MakeRuntime, what: Any, added: str) -> None:
    async with make_runtime() as rt:
        assert await rt.run(Pipeline("words", [what]), ["start"], id="r1") == ["start", added]


async def test_steps_without_a_name_are_named_by_their_place(make_runtime: MakeRuntime) -> None:
    flow = Pipeline("words", [lambda s: s, functools.partial(append, "x"), Appender("y"), append_one])
    async with make_runtime() as rt:
        await rt.run(flow, [], id="r1")
        run = await rt.get("r1")
    assert run is not None
    assert run.step_names == ("step-1", "step-2", "step-3", "append_one")


def append_one(state: list[str]) -> list[str]:
    return [*state, "one"]


def test_a_step_called_outside_a_run_is_an_ordinary_function() -> None:
    assert step(append_one)([]) == ["one"]
    assert asyncio.run(step(name="other")(append_async)("two", [])) == ["two"]


def test_two_steps_of_one_name_are_refused_when_declared() -> None:
    with pytest.raises(UsageError, match="two steps named 'append_one'"):
        Pipeline("words", [append_one, append_one])


# What it may return


async def test_returning_none_keeps_the_state_with_its_changes(make_runtime: MakeRuntime) -> None:
    def change(state: dict[str, int]) -> None:
        state["n"] += 1

    async with make_runtime() as rt:
        assert await rt.run(Pipeline("count", [change]), {"n": 1}, id="r1") == {"n": 2}


@pytest.mark.parametrize("result", [None, 0, {"answer": [1, 2.5, "x"]}, False])
async def test_end_finishes_the_run_with_its_result(make_runtime: MakeRuntime, result: Any) -> None:
    async def never(state: Any) -> None:
        raise AssertionError("a run that has ended takes no more steps")

    flow = Pipeline("early", [lambda state: End(result), never])
    async with make_runtime() as rt:
        assert await rt.run(flow, {"n": 1}, id="r1") == result
        assert await rt.run(flow, {"n": 1}, id="r1") == result
        run = await rt.get("r1")
    assert run is not None
    assert (run.status, run.step, run.progress) == ("completed", 1, 100.0)


async def test_a_loop_is_called_with_the_number_of_finished_steps_until_its_total(make_runtime: MakeRuntime) -> None:
    seen: list[int] = []

    async def advance(number: int, state: int) -> int:
        seen.append(number)
        return state + 10

    async with make_runtime() as rt:
        assert await rt.run(Pipeline("loop", advance, total=3), 0, id="r1") == 30
        assert await rt.run(Pipeline("none", advance, total=0), 7, id="r2") == 7
    assert seen == [0, 1, 2]


async def test_a_loop_without_a_total_goes_on_until_it_returns_end(make_runtime: MakeRuntime) -> None:
    def advance(number: int, state: int) -> Any:
        return End(state) if number == 12 else state + number

    async with make_runtime() as rt:
        assert await rt.run(Pipeline("loop", advance), 0, id="r1") == sum(range(12))
        run = await rt.get("r1")
    assert run is not None
    assert (run.step, run.total_steps, run.progress) == (13, None, 100.0)


async def test_a_state_that_cannot_be_stored_fails_the_run_and_names_the_place(make_runtime: MakeRuntime) -> None:
    calls: list[int] = []

    def bad(state: Any) -> Any:
        calls.append(1)
        return {"client": object()}

    flow = Pipeline("bad", [step(retry=RetryPolicy(attempts=5))(bad)])
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"state\.client: .*object"):
            await rt.run(flow, {}, id="r1")
        assert calls == [1]  # trying again would not make it storable
        with pytest.raises(NotStorableError, match=r"input\.x"):
            await rt.run(flow, {"x": object()}, id="r2")
        assert await rt.get("r2") is None


# What it may raise


class Odd(BaseException):
    """No Exception at all."""


ERRORS = [
    ValueError,
    SystemExit,
    KeyboardInterrupt,
    StopIteration,
    GeneratorExit,
    asyncio.CancelledError,
    Odd,
    StoreUnavailableError,  # of a store that the step uses itself
    StopAsyncIteration,
    TimeoutError,
]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["async", "async with timeout", "def", "def with timeout"])
async def test_whatever_a_step_raises_fails_the_run_and_nothing_else(
    make_runtime: MakeRuntime, error: type[BaseException], kind: str
) -> None:
    async def raise_async(state: Any) -> None:
        raise error

    def raise_def(state: Any) -> None:
        raise error

    timeout = 60 if "timeout" in kind else None
    bad = step(name="bad", timeout=timeout)(raise_async if kind.startswith("async") else raise_def)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="'bad'") as caught:
            await rt.run(Pipeline("odd", [bad]), {"n": 1}, id="r1")
        run = await rt.get("r1")
        assert run is not None
        assert (run.status, run.error) == ("failed", caught.value.error)
        assert error.__name__ in caught.value.error
        assert await rt.run(Pipeline("fine", [append_one]), [], id="r2") == ["one"]


async def test_the_trace_of_an_error_is_kept_with_the_failure(make_runtime: MakeRuntime) -> None:
    def broken(state: Any) -> None:
        raise LookupError("no such tide")

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(Pipeline("broken", [broken]), {}, id="r1")
        (failed,) = [event async for event in rt.events("r1") if event.type == "failed"]
    assert failed.error == "LookupError: no such tide"
    assert "in broken" in failed.data["trace"]


# What it is told


async def test_current_run_tells_a_step_where_it_belongs(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    seen = []

    @step(timeout=30)
    async def look(state: Any) -> None:
        seen.append(current_run())

    def look_in_a_thread(state: Any) -> None:
        seen.append(current_run())

    async with make_runtime() as rt:
        await rt.run(Pipeline("look", [look, look_in_a_thread]), {}, id="r1", metadata={"caller": "u7"})
    first, second = seen
    assert (first.id, first.flow, first.step, first.attempt) == ("r1", "look", "look", 1)
    assert first.metadata == {"caller": "u7"}
    assert first.deadline is not None
    assert first.deadline.timestamp() == clock.now() + 30
    assert (second.step, second.deadline) == ("look_in_a_thread", None)


def test_current_run_outside_of_a_step_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="inside a step"):
        current_run()


async def test_idempotency_keys_are_the_same_for_all_attempts_of_a_step_and_for_no_other(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    keys: list[tuple[str, int, str]] = []
    fails, hangs, inside = [True, True], [True], asyncio.Event()

    def note() -> None:
        run = current_run()
        keys.append((run.step, run.attempt, run.idempotency_key))

    async def shaky(state: Any) -> None:
        note()
        if fails and fails.pop():
            raise OSError("again")

    async def hanging(state: Any) -> None:
        note()
        inside.set()
        if hangs and hangs.pop():
            await asyncio.Event().wait()

    retry = RetryPolicy(attempts=3, first_delay=0)
    flow = Pipeline("keys", [step(retry=retry)(shaky), hanging])
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(flow, {}, id="r1")
        await inside.wait()
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        await rt.run(flow, {}, id="r1")
    assert [key[:2] for key in keys] == [("shaky", 1), ("shaky", 2), ("shaky", 3), ("hanging", 1), ("hanging", 2)]
    first = {key for name, _, key in keys if name == "shaky"}
    second = {key for name, _, key in keys if name == "hanging"}
    assert len(first) == len(second) == 1

    async with make_runtime() as rt:
        rt.register(flow)
        await (await rt.rewind("r1@1")).result()
        await (await rt.fork("r1@1", id="r2")).result()
        await rt.run(flow, {}, id="r3")
        await rt.delete("r3")
        await rt.run(flow, {}, id="r3")
    after = [key for _, _, key in keys[5:]]
    assert len(after) == len(set(after)) == 8
    assert not set(after) & (first | second)


# Its state is its own


async def test_each_attempt_gets_its_own_copy_of_the_state(make_runtime: MakeRuntime) -> None:
    seen: list[list[int]] = []

    def spoil(state: dict[str, list[int]]) -> None:
        seen.append(list(state["items"]))
        state["items"].append(len(seen))
        if len(seen) < 3:
            raise OSError("again")

    flow = Pipeline("copy", [step(retry=RetryPolicy(attempts=3, first_delay=0))(spoil)])
    async with make_runtime() as rt:
        given: dict[str, list[int]] = {"items": [0]}
        assert await rt.run(flow, given, id="r1") == {"items": [0, 3]}
    assert seen == [[0], [0], [0]]
    assert given == {"items": [0]}


async def test_what_is_changed_after_it_was_returned_is_not_stored(make_runtime: MakeRuntime) -> None:
    kept: list[dict[str, int]] = []

    def leak(state: dict[str, int]) -> dict[str, int]:
        kept.append(state)
        return state

    def spoil(state: dict[str, int]) -> None:
        kept[0]["n"] = 99

    async with make_runtime() as rt:
        result = await rt.run(Pipeline("leak", [leak, spoil]), {"n": 1}, id="r1")
        assert result == {"n": 1}
        result["n"] = 5
        assert await rt.run(Pipeline("leak", [leak, spoil]), {"n": 1}, id="r1") == {"n": 1}


async def test_a_run_that_was_cut_off_counts_the_attempt(make_runtime: MakeRuntime) -> None:
    attempts: list[int] = []
    inside = asyncio.Event()

    async def hang(state: Any) -> None:
        attempts.append(current_run().attempt)
        inside.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()

    flow = Pipeline("hang", [hang])
    async with make_runtime(grace=0) as rt:
        handle = await rt.start(flow, {}, id="r1")
        await inside.wait()
        await rt.close()
    with pytest.raises(UsageError, match="not open"):
        await handle.result()
    async with make_runtime() as rt:
        waiting = asyncio.ensure_future(rt.run(flow, {}, id="r1"))
        assert await waiting == {}
    # A clean shutdown is no failed attempt: the second one begins undisturbed.
    assert attempts == [1, 1]


async def test_who_waits_for_a_run_is_told_that_it_was_handed_back(make_runtime: MakeRuntime) -> None:
    inside = asyncio.Event()

    async def hang(state: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    async with make_runtime(grace=0) as rt:
        waiting = asyncio.ensure_future(rt.run(Pipeline("hang", [hang]), {}, id="r1"))
        await inside.wait()
        await rt.close()
    with pytest.raises(RunInterruptedError, match="r1"):
        await waiting
