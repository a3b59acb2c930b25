"""A store that raises what no store should: whoever waits for the run is told, and nothing hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Runtime, ask, call, flow
from holdfast.errors import RunInterruptedError
from holdfast.store.memory import MemoryStore


class Failing(MemoryStore):
    """Raises once, as a driver does whose errors nobody translated."""

    kind = ""

    def try_commit(self, batch: Any, *how: Any) -> Any:
        if self.kind and any(entry.kind == self.kind for commit in batch for entry in commit.entries):
            self.kind = ""
            raise RuntimeError("the driver lost its connection")
        return super().try_commit(batch, *how)


made: list[int] = []


async def work(number: int) -> int:
    made.append(number)
    return number


@flow
async def two_calls(number: int) -> int:
    return await call(work, number) + await call(work, number + 1)


@flow
async def question(number: int) -> Any:
    return await ask("how many?", timeout=0.01, default=number)


@pytest.mark.parametrize(("flow_of", "kind", "result"), [(two_calls, "call", 3), (question, "wait", 1)])
async def test_an_error_that_is_none_of_ours_ends_the_wait_for_an_entry_and_the_run_goes_on_later(
    flow_of: Any, kind: str, result: int
) -> None:
    store = Failing()
    async with Runtime(store) as rt:
        store.kind = kind
        with pytest.raises(RunInterruptedError, match="RuntimeError: the driver lost its connection"):
            await asyncio.wait_for(rt.run(flow_of, 1, id="r1"), 10)
        assert await asyncio.wait_for(rt.run(flow_of, 1, id="r1"), 10) == result
