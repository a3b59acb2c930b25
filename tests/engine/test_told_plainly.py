"""What users are told when something is not as they thought."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import End, Goto, Handover, Pipeline, Runtime, Team, Terminate, step
from holdfast.errors import RunFailedError, RunInterruptedError, UsageError
from holdfast.store.memory import MemoryStore


def keep(state: Any) -> None:
    pass


async def test_the_blocking_call_says_what_to_use_inside_a_running_loop() -> None:
    with pytest.raises(UsageError, match=r"blocking\.Runtime"):
        holdfast.run(Pipeline("p", [keep]), {}, store="memory:")


@pytest.mark.parametrize("given", [keep, [keep], step(keep), "p", None], ids=["def", "list", "step", "name", "None"])
async def test_what_is_no_flow_is_refused_with_what_to_make_of_it(given: Any) -> None:
    async with Runtime("memory:") as rt:
        for begin in (rt.run, rt.start):
            with pytest.raises(UsageError, match=r"is no flow\. Make one of it: @holdfast\.flow .* or Pipeline"):
                await begin(given, {})


async def test_a_failure_carries_the_error_of_the_step_where_it_happened() -> None:
    def fail(state: Any) -> None:
        raise ValueError("no such city")

    async with Runtime("memory:") as rt:
        with pytest.raises(RunFailedError, match="no such city") as raised:
            await rt.run(Pipeline("p", [fail]), {})
    assert isinstance(raised.value.__cause__, ValueError)


async def test_a_handle_gives_the_error_of_the_step_also_when_it_is_asked_late() -> None:
    def fail(state: Any) -> None:
        raise ValueError("no such city")

    async with Runtime("memory:") as rt:
        handle = await rt.start(Pipeline("p", [fail]), {})
        for _ in range(2):
            with pytest.raises(RunFailedError, match="no such city") as raised:
                await handle.result()
            assert isinstance(raised.value.__cause__, ValueError)


async def test_an_unexpected_error_of_the_driver_is_told_as_what_it_is() -> None:
    class Broken(Pipeline[Any]):
        def next_step(self, cursor: dict[str, Any]) -> Any:
            raise ZeroDivisionError("a bug in a flow")

    async with Runtime("memory:") as rt:
        with pytest.raises(RunInterruptedError, match="unexpected ZeroDivisionError: a bug in a flow") as raised:
            await rt.run(Broken("p", [keep]), {})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


async def test_what_lists_show_of_a_run_follows_a_program_that_has_changed() -> None:
    inside = asyncio.Event()

    async def wait(state: Any) -> None:
        if not inside.is_set():
            inside.set()
            await asyncio.Event().wait()

    def more(state: Any) -> None:
        pass

    store = MemoryStore()
    async with Runtime(store, grace=0) as rt:
        await rt.start(Pipeline("p", [keep, wait]), {}, id="r1")
        await inside.wait()
    async with Runtime(store) as rt:
        await rt.run(Pipeline("p", [keep, wait, more]), {}, id="r1")
        run = await rt.get("r1")
    assert run is not None
    assert (run.step, run.total_steps, run.step_names) == (3, 3, ("keep", "wait", "more"))


async def test_a_loop_whose_total_became_smaller_ends(tmp_path: Any) -> None:
    calls: list[int] = []

    async def count(number: int, state: int) -> int:
        calls.append(number)
        return state + 1

    async with Runtime("memory:") as rt:
        await rt.run(Pipeline("loop", count, total=5), 0, id="r1")
        rt.register(Pipeline("loop", count, total=2))
        handle = await rt.rewind("r1@4")
        assert await handle.result() == 4
    assert calls == [0, 1, 2, 3, 4, 3]


@pytest.mark.parametrize(
    ("flow", "says"),
    [
        (Team("team", [lambda data: End(1)]), r"End\(...\) is not understood here: .* a member of a team Terminate"),
        (Team("team", [lambda data: Goto("x")]), r"Goto\(...\) is not understood here: .* a member of a team Handover"),
        (Pipeline("p", [lambda state: Handover("x")]), r"Handover\(...\) is not understood here: a member of a team"),
        (Pipeline("p", [lambda state: Terminate()]), r"Terminate\(...\) is not understood here: .*, elsewhere End"),
    ],
)
async def test_a_move_of_another_kind_of_flow_says_where_it_belongs(flow: Any, says: str) -> None:
    async with Runtime("memory:") as rt:
        with pytest.raises(RunFailedError, match=says):
            await rt.run(flow, {})
