"""Async and `def` bodies, threads and executors: which verbs work where, and what is said where they do not."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import holdfast
from engine.lives import Lives, MakeRuntime, MakeStore
from holdfast import Pipeline, blocking, call, current_run, emit, flow, step
from holdfast.errors import IdenticalBranchError, RunFailedError, UsageError, WrongKindError
from holdfast.testing import ManualClock


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class Gate:
    """Stops a thread the first time, for the test to cut its run off there; later it is open."""

    def __init__(self) -> None:
        self.reached, self._open = asyncio.Event(), threading.Event()
        self._loop, self._first = asyncio.get_running_loop(), True

    def wait(self) -> None:
        first, self._first = self._first, False
        if first:
            self._loop.call_soon_threadsafe(self.reached.set)
            self._open.wait()
            blocking.sleep(0)  # the run is gone: this does not return

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Any]:
    gates: list[Gate] = []

    def make() -> Gate:
        gates.append(Gate())
        return gates[-1]

    yield make
    for one in gates:
        one.open()


# Def bodies


async def test_a_def_body_calls_either_kind_and_finds_both_again(lives: Lives, gate: Any) -> None:
    made, here = Counter[str](), gate()

    def plain(text: str) -> str:
        made[text] += 1
        return text.upper()

    async def coming(text: str) -> str:
        made[text] += 1
        await asyncio.sleep(0)
        return text.upper()

    @flow
    def body(text: str) -> list[str]:
        out = [blocking.call(plain, "a"), blocking.call(coming, "b")]
        here.wait()
        return [*out, blocking.call.options(timeout=30)(plain, "c"), blocking.call.options(key="k")(coming, text)]

    await lives.cut(body, "d", at=here.reached)
    here.open()
    assert await lives.finish(body, "d") == ["A", "B", "C", "D"]
    assert set(made.values()) == {1}


async def test_def_steps_are_called_directly_in_def_bodies(lives: Lives, gate: Any) -> None:
    made, here = Counter[str](), gate()

    @step
    def fetch(url: str) -> str:
        made[url] += 1
        return f"<{url}>"

    @step
    def both() -> str:
        return fetch("b") + fetch.options(key="k")("c")

    @flow
    def body() -> list[str]:
        out = [fetch("a"), both()]
        here.wait()
        return out

    await lives.cut(body, at=here.reached)
    here.open()
    assert await lives.finish(body) == ["<a>", "<b><c>"]
    assert set(made.values()) == {1}


async def test_a_def_call_in_a_def_body_stays_in_its_thread(lives: Lives) -> None:
    @flow
    def body() -> bool:
        here = threading.get_ident()
        return blocking.call(threading.get_ident) == here

    assert await lives.finish(body) is True


async def test_an_async_body_calls_def_functions_in_threads(lives: Lives) -> None:
    @step
    def where() -> str:
        return threading.current_thread().name

    @flow
    async def body() -> list[str]:
        return [threading.current_thread().name, await call(where), await call(threading.get_native_id) and "x"]

    here, there, _ = await lives.finish(body)
    assert here != there


async def test_calls_nest_through_either_kind(lives: Lives) -> None:
    async def leaf(n: int) -> int:
        return n

    def middle(n: int) -> int:
        return blocking.call(leaf, n) + blocking.call(leaf, n + 1)

    async def upper(n: int) -> int:
        return await call(middle, n) + await call(leaf, 100)

    @flow
    def body() -> int:
        return blocking.call(upper, 1)

    assert await lives.finish(body) == 103
    async with lives.runtime() as rt:
        keys = [line.key async for line in rt.ledger("r1")]
    assert keys == [
        "0/upper:1/middle:1/leaf:1",
        "0/upper:1/middle:1/leaf:2",
        "0/upper:1/middle:1",
        "0/upper:1/leaf:1",
        "0/upper:1",
    ]


async def test_a_step_of_a_pipeline_may_be_a_def_body(lives: Lives) -> None:
    def first(state: list[int]) -> None:
        state.append(blocking.call(max, 1, 2))

    async def second(state: list[int]) -> list[int]:
        return [*state, await call(max, 3, 4)]

    assert await lives.finish(Pipeline("p", [first, second]), []) == [2, 4]


async def test_many_def_bodies_that_all_make_blocking_calls_do_not_wait_for_each_other(lives: Lives) -> None:
    everybody = 70  # more than there are threads for bodies

    def plain(n: int) -> int:
        return n

    async def coming(n: int) -> int:
        return n

    def deep(n: int) -> int:
        return blocking.call.options(timeout=60)(plain, n)

    @flow
    def body(n: int) -> int:
        return (
            blocking.call(plain, n)
            + blocking.call(coming, n)
            + blocking.call.options(timeout=60)(plain, n)
            + blocking.call.options(timeout=60)(deep, n)
        )

    async with lives.runtime() as rt:
        results = await asyncio.gather(*(rt.run(body, n, id=f"r{n}") for n in range(everybody)))
    assert results == [4 * n for n in range(everybody)]


# The wrong kind


async def test_blocking_verbs_in_an_async_body_are_an_error_at_once(lives: Lives) -> None:
    @step
    def def_step() -> None: ...

    @flow
    async def body() -> list[str]:
        out = []
        for verb in (
            lambda: blocking.call(max, 1, 2),
            lambda: blocking.sleep(1),
            lambda: blocking.ask("?"),
            lambda: blocking.receive("t"),
            def_step,
        ):
            try:
                verb()
            except WrongKindError as error:
                out.append(str(error))
        return out

    told = await lives.finish(body)
    assert len(told) == 5
    assert all("await" in text for text in told)


async def test_awaited_verbs_in_a_def_body_are_an_error_at_once(lives: Lives) -> None:
    @step
    async def async_step() -> None: ...

    @flow
    def body() -> list[str]:
        out = []
        for verb in (
            lambda: call(max, 1, 2),
            lambda: holdfast.sleep(1),
            lambda: holdfast.ask("?"),
            lambda: holdfast.receive("t"),
            async_step,
        ):
            try:
                verb()
            except WrongKindError as error:
                out.append(str(error))
        return out

    told = await lives.finish(body)
    assert len(told) == 5
    assert all("holdfast.blocking" in text for text in told)


async def test_a_loop_of_its_own_inside_a_def_body_is_told_apart(lives: Lives) -> None:
    async def other_loop() -> None:
        await call(max, 1, 2)

    @flow
    def body() -> None:
        asyncio.run(other_loop())

    with pytest.raises(RunFailedError, match="event loop of its own"):
        await lives.finish(body)


# Executors


async def test_verbs_work_in_the_thread_pool_of_a_step(lives: Lives, gate: Any) -> None:
    made, here = Counter[str](), gate()

    def plain(text: str) -> str:
        made[text] += 1
        return text

    async def coming(text: str) -> str:
        made[text] += 1
        return text

    with ThreadPoolExecutor(2) as pool:

        @step(executor=pool)
        def pooled(text: str) -> str:
            out = blocking.call(plain, text + "1") + blocking.call(coming, text + "2")
            here.wait()
            return out + current_run().id

        @flow
        async def body() -> list[str]:
            return [await call(pooled, "a"), await call(pooled, "b")]

        await lives.cut(body, at=here.reached)
        here.open()
        assert await lives.finish(body) == ["a1a2r1", "b1b2r1"]
    assert set(made.values()) == {1}


async def test_a_step_that_calls_another_in_the_same_small_pool_does_not_wait_for_itself(lives: Lives) -> None:
    with ThreadPoolExecutor(1) as pool:

        @step(executor=pool)
        def inner(n: int) -> int:
            return n + 1

        @step(executor=pool)
        def outer(n: int) -> int:
            return inner(n) + blocking.call(inner, n)

        @flow
        def body() -> int:
            return outer(1)

        assert await lives.finish(body) == 4
        assert await lives.events("call_changed") == []


_pool: list[Executor] = []


class _LatePool:
    """The process pool of the test that is under way: steps are declared when the module is imported."""

    def submit(self, *work: Any) -> Any:
        return _pool[0].submit(*work)


@step(executor=_LatePool())  # type: ignore[arg-type]
def calls_in_a_process(n: int) -> int:
    return int(blocking.call(max, n, 1))


@step(executor=_LatePool())  # type: ignore[arg-type]
def adds_in_a_process(n: int) -> int:
    return n + 1


def calls_in_a_pool_of_its_own(n: int) -> int:
    return int(blocking.call(max, n, 1))


async def test_a_call_runs_in_the_process_pool_of_its_step_and_verbs_there_are_an_error(lives: Lives) -> None:
    @flow
    async def body() -> str:
        assert await call(adds_in_a_process, 1) == 2
        try:
            await call(calls_in_a_process, 2)
        except UsageError as error:
            return str(error)
        return "?"

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        _pool[:] = [pool]
        assert "process of an executor" in await lives.finish(body)


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_verbs_in_a_process_pool_that_the_body_uses_are_an_error(lives: Lives, method: str) -> None:
    @flow
    async def body() -> str:
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            try:
                await asyncio.get_running_loop().run_in_executor(pool, calls_in_a_pool_of_its_own, 2)
            except UsageError as error:
                return str(error)
        return "no error"

    assert "process" in await lives.finish(body)


# Threads that user code starts


async def test_a_thread_belongs_to_the_run_through_bind_only(lives: Lives) -> None:
    seen: list[Any] = []

    def look() -> None:
        try:
            seen.append(current_run().id)
        except UsageError as error:
            seen.append(str(error))

    @flow
    def body() -> None:
        for target in (look, current_run().bind(look)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()

    await lives.finish(body)
    assert "bind" in seen[0]
    assert seen[1] == "r1"


async def test_bound_threads_find_their_own_results(lives: Lives, gate: Any) -> None:
    made, here = Counter[str](), gate()

    def fetch(name: str) -> str:
        made[name] += 1
        return name.upper()

    def branch(name: str) -> str:
        return blocking.call(fetch, name) + blocking.call(fetch, name * 2)

    @flow
    def body() -> list[str]:
        with ThreadPoolExecutor(4) as pool:
            out = list(pool.map(current_run().bind(branch), "abcdefgh"))
        here.wait()
        return out

    await lives.cut(body, at=here.reached)
    here.open()
    assert await lives.finish(body) == [name + name * 2 for name in "ABCDEFGH"]
    assert set(made.values()) == {1}


async def test_identical_bound_threads_are_fine_in_turn_and_an_error_at_once(lives: Lives) -> None:
    both = threading.Barrier(2)

    def tick() -> int:
        return 1

    def in_turn_branch() -> None:
        blocking.call(tick)

    def at_once_branch() -> str:
        both.wait()
        try:
            blocking.call(tick)
        except IdenticalBranchError as error:
            return type(error).__name__
        finally:
            both.wait()
        return "fine"

    @flow
    def body() -> list[str]:
        for _ in range(3):
            thread = threading.Thread(target=current_run().bind(in_turn_branch))
            thread.start()
            thread.join()
        with ThreadPoolExecutor(2) as pool:
            at_once = current_run().bind(at_once_branch)
            return sorted(future.result() for future in [pool.submit(at_once), pool.submit(at_once)])

    assert await lives.finish(body) == ["IdenticalBranchError", "fine"]


async def test_a_bound_function_in_a_thread_of_an_async_body(lives: Lives) -> None:
    def work(n: int) -> int:
        return int(blocking.call(max, n, 1))

    @flow
    async def body() -> list[int]:
        bound = current_run().bind(work)
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(None, bound, 3), await asyncio.to_thread(work, 5)]

    assert await lives.finish(body) == [3, 5]


async def test_a_bound_thread_that_outlives_its_body_can_do_no_more(lives: Lives) -> None:
    release, late = threading.Event(), []

    def work() -> None:
        release.wait()
        try:
            blocking.call(late.append, "done")
        except BaseException as error:
            late.append(type(error).__name__)

    threads: list[threading.Thread] = []

    @flow
    def body() -> str:
        threads.append(threading.Thread(target=current_run().bind(work)))
        threads[0].start()
        return "ended"

    async with lives.runtime() as rt:
        assert await rt.run(body, id="r1") == "ended"
        release.set()
        await asyncio.to_thread(threads[0].join)
    assert late == ["Suspended"]


# Outside of a run


def test_outside_of_a_run_everything_is_an_ordinary_function() -> None:
    @step
    def plain(n: int) -> int:
        return n + 1

    @step(on_doubt="ask", timeout=1)
    async def coming(n: int) -> int:
        return n + await call(plain, n)

    @flow
    async def async_flow(n: int) -> int:
        return await coming(n)

    @flow
    def def_flow(n: int) -> int:
        return plain(n) + blocking.call(plain, n) + blocking.call(coming, n)

    assert plain(1) == 2
    assert asyncio.run(coming(1)) == 3
    assert asyncio.run(async_flow(2)) == 5
    assert def_flow(1) == 2 + 2 + 3
    assert plain.options(key="k")(4) == 5
    with pytest.raises(UsageError, match="current_run"):
        current_run()


def test_attributes_that_a_function_bears_do_not_take_the_place_of_a_steps_own() -> None:
    def marked(n: int) -> int:
        """What it does."""
        return n + 1

    vars(marked).update(name="wrong", options="wrong", returns="wrong", policy="wrong", advance="wrong", tag="kept")
    one, whole = step(marked), flow(marked)
    assert one.options(key="k")(1) == 2
    assert (one.name, one.returns, one.__doc__) == ("marked", int, "What it does.")
    assert (whole.name, whole.policy, whole(1), whole.result_type) == ("marked", None, 2, int)
    assert callable(whole.advance)
    assert vars(one)["tag"] == vars(whole)["tag"] == "kept"


async def test_what_a_call_was_given_is_not_kept_alive(lives: Lives) -> None:
    class Document:
        def read(self) -> int:
            return 1

    held: list[Any] = []

    @flow
    async def body() -> int:
        document = Document()
        held.append(weakref.ref(document))
        return await call(document.read) + await call(lambda: document.read() * 1) + await call(partial(max, 1), 0)

    assert await lives.finish(body) == 3
    gc.collect()
    assert held[0]() is None


async def test_whoever_watches_events_is_outside_of_the_run(make_runtime: MakeRuntime) -> None:
    seen: list[Any] = []

    @step
    def note(kind: str) -> str:
        return f"{kind}!"

    def watch(event: Any) -> None:
        seen.append(note(event.type))
        emit("echo", event.type)
        with pytest.raises(UsageError, match="current_run"):
            current_run()

    @flow
    async def body() -> None:
        await call(max, 1, 2)
        emit("chunk", 1)
        await call(max, 3, 4)

    async with make_runtime(on_event=watch) as rt:
        await rt.run(body, id="r1")
        assert [event.data["name"] async for event in rt.events("r1") if event.type == "emitted"] == ["chunk"]
    assert seen.count("call!") == 2
