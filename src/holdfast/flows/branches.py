"""Several things at once inside one step: functions as journaled calls, flows as child runs."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from holdfast.errors import UsageError
from holdfast.inside import Child, begun, frame_for, spawning, with_options
from holdfast.inside import needed as inside_a_run
from holdfast.work import as_work

Merge = Literal["all", "first"] | int
_LONG = 180  # characters of a name that a key has room for beside a number


def is_flow(value: Any) -> bool:
    """Whether it can be run: a pipeline, a graph, a function marked as a flow."""
    return hasattr(value, "advance") and hasattr(value, "next_step")


def name_of(value: Any) -> str:
    """The name of a function, step or flow."""
    return str(value.name) if is_flow(value) else as_work(value).called


class Branch:
    """Something to be done: a function as a call, a flow as a child. Its place is taken here and now, under `key`.

    Each gets data of its own, so that none sees what another does to it.
    """

    def __init__(self, what: Any, data: Any, key: str) -> None:
        frame = inside_a_run("call", frame_for("call"))
        self._what, self._data = what, copy.deepcopy(data)
        self.is_child = is_flow(what)
        self._id = ""
        if self.is_child:
            self._place, self._id = spawning(frame, what, data, None, key)
        else:
            self._what = with_options(as_work(what), {"key": key})
            self._place = frame.take(self._what.called, frame.scope.digest(((data,), {})), key)
        self._scope = frame.scope
        self._child: Child[Any] | None = None
        self.task: asyncio.Future[Any] | None = None
        """What is under way, once it has begun."""

    def begin(self) -> asyncio.Future[Any]:
        """Do it, if its result is not known already."""
        if self.task is None:
            if self.is_child:
                self._child = begun(self._place, self._what, self._data, self._id)
                self.task = asyncio.ensure_future(settled(self._child))
            else:
                self.task = asyncio.ensure_future(self._scope.call(self._place, self._what, (self._data,), {}))
        return self.task

    @property
    def found(self) -> int:
        """The entry of the log that holds its result: the lower, the earlier it was there; 0 without a result."""
        return self._scope.found(self._place)

    @property
    def failure(self) -> BaseException | None:
        """What it has come to, if that is no result."""
        if self.task is None or not self.task.done():
            return None
        return asyncio.CancelledError() if self.task.cancelled() else self.task.exception()

    async def give_up(self, reason: str) -> None:
        """It is not needed any more: a child is cancelled for good."""
        if self._child is not None:
            await self._child.cancel(reason)
        elif self.is_child:  # not begun in this life, but perhaps in the one before
            await self._scope.cancel_child(self._id, reason)


async def merged(functions: Sequence[Any], state: Any, need: int) -> list[Any]:
    """The first `need` results, in the order of the branches. What is still under way then is given up.

    When so many have failed that this cannot be, the first failure is raised.
    """
    branches = [Branch(function, state, key) for function, key in zip(functions, _by_name(functions), strict=True)]
    try:
        await _until_enough(branches, need)
        # By the log, not by who is quicker this time: after a crash the same ones are first.
        first = sorted((branch for branch in branches if branch.found), key=lambda branch: branch.found)[:need]
        for branch in branches:
            if branch not in first:
                await branch.give_up("not needed any more")
        return [await branch.begin() for branch in branches if branch in first]
    finally:
        await _give_up(branches)


def _by_name(functions: Sequence[Any]) -> list[str]:
    """What tells the branches apart: not their places, so that others may be put in between and before them."""
    keys: list[str] = []
    for name in map(name_of, functions):
        key, count = name, 1
        while key in keys:
            count += 1
            key = f"{name[:_LONG]}-{count}"
        keys.append(key)
    return keys


async def _until_enough(branches: list[Branch], need: int) -> None:
    """Return when so many have a result. Nothing begins when they have it from before."""
    if sum(branch.found > 0 for branch in branches) >= need:
        return
    pending, failures = {branch.begin() for branch in branches}, list[BaseException]()
    while pending and sum(branch.found > 0 for branch in branches) < need:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        failures += [branch.failure for branch in branches if branch.task in done and branch.failure is not None]
        if len(branches) - len(failures) < need:
            await _calls_ended(branches)
            raise failures[0]


async def mapped(what: Any, items: Sequence[Any], concurrency: int) -> list[Any]:
    """The result for each item, in order; at most `concurrency` are under way at once.

    Once one has failed no other is begun, and its failure is raised.
    """
    room, branches, failed = asyncio.Semaphore(concurrency), list[Branch](), list[asyncio.Future[Any]]()

    def ended(task: asyncio.Future[Any]) -> None:
        room.release()
        if task.cancelled() or task.exception() is not None:
            failed.append(task)

    try:
        for place, item in enumerate(items):
            await room.acquire()
            if failed:
                break
            branches.append(branch := Branch(what, item, str(place)))
            branch.begin().add_done_callback(ended)
        pending = {branch.begin() for branch in branches}
        while pending and not failed:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        if failed:
            await _calls_ended(branches)
            raise failed[0].exception() or asyncio.CancelledError
        return [await branch.begin() for branch in branches]
    finally:
        await _give_up(branches)


async def _calls_ended(branches: Sequence[Branch]) -> None:
    """Return when no function is under way: its result is kept for the next attempt, and nothing is done twice.

    Children are left to themselves: they go on, and are found again when the step is tried again.
    """
    calls = [branch.task for branch in branches if branch.task is not None and not branch.is_child]
    if calls:
        await asyncio.wait(calls)


async def _give_up(branches: Sequence[Branch]) -> None:
    """Cancel what is not done, and return when it is."""
    tasks = [branch.task for branch in branches if branch.task is not None]
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
