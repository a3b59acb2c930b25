"""Several things at once inside one step: functions as journaled calls, flows as child runs."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from holdfast.errors import UsageError
from holdfast.inside import Child, call, spawn
from holdfast.work import as_work

Merge = Literal["all", "first"] | int


def is_flow(value: Any) -> bool:
    """Whether it can be run: a pipeline, a graph, a function marked as a flow."""
    return hasattr(value, "advance") and hasattr(value, "next_step")


def name_of(value: Any) -> str:
    """The name of a function, step or flow."""
    return str(value.name) if is_flow(value) else as_work(value).called


class Branch:
    """Something under way: a function as a call, a flow as a child. Its place is taken here and now, under `key`.

    Each gets data of its own, so that none sees what another does to it.
    """

    def __init__(self, what: Any, data: Any, key: str) -> None:
        data = copy.deepcopy(data)
        self.child: Child[Any] | None = spawn(what, data, key=key) if is_flow(what) else None
        self.task = asyncio.ensure_future(
            call.options(key=key)(what, data) if self.child is None else settled(self.child)
        )

    @property
    def fine(self) -> bool:
        """Whether it has a result."""
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


async def merged(functions: Sequence[Any], state: Any, need: int) -> list[Any]:
    """The first `need` results, in the order of the branches. What is still under way then is given up.

    When so many have failed that this cannot be, the first failure is raised. Children are left to themselves
    then: they are found again when the step is tried again.
    """
    branches = [Branch(function, state, str(place)) for place, function in enumerate(functions)]
    tasks = [branch.task for branch in branches]
    pending, failures = set(tasks), list[BaseException]()
    try:
        while pending and sum(branch.fine for branch in branches) < need:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            failures += [error for task in tasks if task in done and (error := task.exception()) is not None]
            if len(tasks) - len(failures) < need:
                raise failures[0]
        for branch in branches:
            if branch.child is not None and not branch.task.done():
                await branch.child.cancel("not needed any more")
        return [branch.task.result() for branch in branches if branch.fine][:need]
    finally:
        await _give_up(tasks)


async def mapped(what: Any, items: Sequence[Any], concurrency: int) -> list[Any]:
    """The result for each item, in order; at most `concurrency` are under way at once."""
    room, tasks, failed = asyncio.Semaphore(concurrency), list[asyncio.Future[Any]](), asyncio.Event()

    def ended(task: asyncio.Future[Any]) -> None:
        room.release()
        if task.cancelled() or task.exception() is not None:
            failed.set()

    try:
        for place, item in enumerate(items):
            await room.acquire()
            if failed.is_set():
                break
            tasks.append(task := Branch(what, item, str(place)).task)
            task.add_done_callback(ended)
        return list(await asyncio.gather(*tasks))
    finally:
        await _give_up(tasks)


async def _give_up(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what is not done, and return when it is."""
    under_way = [task for task in tasks if not task.done()]
    for task in under_way:
        task.cancel()
    if under_way:
        await asyncio.wait(under_way)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # told already, by the first of them


def needed(what: str, merge: Merge, count: int) -> int:
    """How many results a merge waits for. Raises UsageError for one that cannot be."""
    if merge == "all":
        return count
    if merge == "first":
        return 1
    if type(merge) is not int or not 0 < merge <= count:
        raise UsageError(f"{what}: merge={merge!r} must be 'all', 'first' or a number from 1 to {count}")
    return merge


async def settled(value: Any) -> Any:
    """The value, awaited if it is to be."""
    return await value if isinstance(value, Awaitable) else value


Reduce = Callable[[Any, list[Any]], Any]
