"""Threads for `def` steps: one per run for as long as its steps are `def`.

Daemon threads, and not a ThreadPoolExecutor: a step that never returns must not keep the process
from ending, and a thread whose step timed out is left to itself and replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_Job = tuple[contextvars.Context, Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]"]


class Lane:
    """One thread that does jobs one after the other: its own, or one that calls `serve`."""

    def __init__(self, *, own_thread: bool = True) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        if own_thread:
            threading.Thread(target=self.serve, name="holdfast-step", daemon=True).start()

    def submit(self, fn: Callable[..., Any], *args: Any) -> asyncio.Future[tuple[bool, Any]]:
        """(True, what `fn` returned) or (False, what it raised), whatever that is."""
        future: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()
        self._jobs.put((contextvars.copy_context(), fn, args, future))
        return future

    def retire(self) -> None:
        """End the thread after the job it is at."""
        self._jobs.put(None)

    def result_of(self, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
        """What comes of the work, which is done by a task of the loop; the calling thread does jobs until then."""
        begun: list[asyncio.Task[Any]] = []

        def begin() -> None:
            begun.append(loop.create_task(work))
            begun[0].add_done_callback(lambda _: self.retire())

        def give_up() -> None:
            begun[0].cancel()

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            work.close()  # the loop is gone
            raise
        try:
            self.serve()
        except BaseException:
            loop.call_soon_threadsafe(give_up)
            raise
        if not begun or not begun[0].done():
            raise asyncio.CancelledError("the loop is gone")
        return begun[0].result()

    def serve(self) -> None:
        """Do jobs on the calling thread until the lane is retired."""
        while (job := self._jobs.get()) is not None:
            context, fn, args, future = job
            try:
                outcome = (True, context.run(fn, *args))
            except BaseException as error:
                outcome = (False, error)
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, outcome)
            except RuntimeError:
                return  # the loop is gone, and with it whoever waited
            del job, context, fn, args, future, outcome


def _settle(future: asyncio.Future[Any], outcome: tuple[bool, Any]) -> None:
    if not future.done():
        future.set_result(outcome)


class Lanes:
    """The idle lanes, and a limit on how many there are."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self._idle: list[Lane] = []

    async def acquire(self) -> Lane:
        """A lane of one's own; waits while all are taken."""
        await self._free.acquire()
        return self._idle.pop() if self._idle else Lane()

    def release(self, lane: Lane, *, reusable: bool) -> None:
        """Give a lane back; one that may still be busy with an abandoned step is not used again."""
        if reusable:
            self._idle.append(lane)
        else:
            lane.retire()
        self._free.release()

    def close(self) -> None:
        """End the idle threads."""
        for lane in self._idle:
            lane.retire()
        self._idle.clear()
