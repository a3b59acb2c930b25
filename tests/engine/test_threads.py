"""Where `def` steps run: in a thread of their run, or in the executor that they ask for."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Graph, Pipeline, Runtime, current_run, step
from holdfast.errors import RunFailedError, UsageError

MakeRuntime = Callable[..., Runtime]


async def test_def_steps_never_block_the_loop(make_runtime: MakeRuntime) -> None:
    inside, release = threading.Event(), threading.Event()

    def block(state: Any) -> str:
        inside.set()
        release.wait()
        return threading.current_thread().name

    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("block", [block]), {}, id="r1")
        await asyncio.to_thread(inside.wait)
        assert await rt.run(Pipeline("other", [lambda state: "fine"]), {}, id="r2") == "fine"
        release.set()
        assert await handle.result() != threading.main_thread().name


async def test_consecutive_def_steps_stay_in_one_thread(make_runtime: MakeRuntime) -> None:
    local = threading.local()

    def note(state: list[int]) -> list[int]:
        local.count = getattr(local, "count", 0) + 1
        return [*state, local.count]

    flow = Pipeline("stay", [step(name=f"s{n}")(note) for n in range(5)])
    async with make_runtime() as rt:
        assert await rt.run(flow, [], id="r1") == [1, 2, 3, 4, 5]


async def test_two_runs_at_once_have_a_thread_each(make_runtime: MakeRuntime) -> None:
    both = threading.Barrier(2)

    def meet(state: Any) -> int:
        both.wait(timeout=30)
        return threading.get_ident()

    flow = Pipeline("meet", [meet])
    async with make_runtime() as rt:
        first, second = await asyncio.gather(rt.run(flow, {}, id="r1"), rt.run(flow, {}, id="r2"))
    assert first != second


async def test_more_runs_than_threads_all_end(make_runtime: MakeRuntime) -> None:
    def note(state: int) -> int:
        return state + 1

    flow = Pipeline("many", [step(name=name)(note) for name in ("a", "b", "c")])
    async with make_runtime() as rt:
        results = await asyncio.gather(*(rt.run(flow, n, id=f"r{n}") for n in range(150)))
    assert results == [n + 3 for n in range(150)]


async def test_a_step_runs_in_the_thread_pool_that_it_asks_for(make_runtime: MakeRuntime) -> None:
    with ThreadPoolExecutor(1, "own-pool") as pool:

        @step(executor=pool)
        def where(state: Any) -> str:
            return threading.current_thread().name

        async with make_runtime() as rt:
            assert (await rt.run(Pipeline("pool", [where]), {}, id="r1")).startswith("own-pool")


@pytest.mark.parametrize("error", [ValueError, SystemExit, StopIteration, KeyboardInterrupt])
async def test_whatever_is_raised_in_a_pool_fails_the_run(
    make_runtime: MakeRuntime, error: type[BaseException]
) -> None:
    with ThreadPoolExecutor(1) as pool:

        @step(executor=pool)
        def bad(state: Any) -> str:
            raise error

        async with make_runtime() as rt:
            with pytest.raises(RunFailedError, match=error.__name__):
                await rt.run(Pipeline("pool", [bad]), {}, id="r1")


_pool: list[Any] = []


class _LatePool:
    """The process pool of the test that is under way: steps are declared when the module is imported."""

    def submit(self, *work: Any) -> Any:
        return _pool[0].submit(*work)


@step(executor=_LatePool())  # type: ignore[arg-type]
def in_another_process(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "pid": os.getpid()}


@step(executor=_LatePool())  # type: ignore[arg-type]
def asks_for_its_run(state: dict[str, Any]) -> str:
    return current_run().id


async def test_a_step_runs_in_the_process_pool_that_it_asks_for(make_runtime: MakeRuntime) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        _pool[:] = [pool]
        async with make_runtime() as rt:
            result = await rt.run(Pipeline("pool", [in_another_process]), {"n": 1}, id="r1")
            assert result["n"] == 1
            assert result["pid"] != os.getpid()
            with pytest.raises(RunFailedError, match=r"runs in a process of an executor"):
                await rt.run(Pipeline("verbs", [asks_for_its_run]), {}, id="r2")


async def test_a_step_under_another_name_than_that_of_its_function_runs_in_a_process_pool(
    make_runtime: MakeRuntime,
) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        steps = [
            step(executor=pool)(plain_in_another_process),
            step(executor=pool, name="partial")(functools.partial(adds, by=2)),
            step(executor=pool, name="again")(in_another_process.fn),
        ]
        async with make_runtime() as rt:
            result = await rt.run(Pipeline("pool", steps), {"n": 1}, id="r1")
    assert result["n"] == 3
    assert result["pid"] != os.getpid()


def adds(state: dict[str, Any], *, by: int) -> dict[str, Any]:
    return {**state, "n": state["n"] + by}


def plain_in_another_process(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "pid": os.getpid()}


async def test_a_node_made_of_a_plain_function_runs_in_a_process_pool(make_runtime: MakeRuntime) -> None:
    graph = Graph("pool")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        graph.node(plain_in_another_process, start=True, executor=pool)
        async with make_runtime() as rt:
            result = await rt.run(graph, {"n": 1}, id="r1")
    assert result["n"] == 1
    assert result["pid"] != os.getpid()


def test_an_async_step_with_an_executor_is_refused_when_declared() -> None:
    async def work(state: Any) -> None: ...

    with pytest.raises(UsageError, match="executor"):
        step(executor=_LatePool())(work)  # type: ignore[arg-type]


async def test_a_step_sees_its_run_and_no_other_in_a_shared_thread(make_runtime: MakeRuntime) -> None:
    seen: list[str] = []

    def note(state: Any) -> None:
        seen.append(current_run().id)

    async with make_runtime() as rt:
        for name in ("r1", "r2", "r3"):
            await rt.run(Pipeline("see", [note]), {}, id=name)
    assert seen == ["r1", "r2", "r3"]
