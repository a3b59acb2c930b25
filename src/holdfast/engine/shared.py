"""One result that many may wait for."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Set once. Each waiter has a future of its own, so whoever gives up the wait takes nothing from the others.

    That is what `asyncio.shield` is for as well, at three times the cost, and every run is waited for.
    """

    __slots__ = ("_done", "_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[asyncio.Future[T]] = []
        self._done: asyncio.Future[T] | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is a result already."""
        return self._done is not None

    def wait(self) -> asyncio.Future[T]:
        """What to await for the result."""
        if self._done is not None:
            return self._done
        waiter: asyncio.Future[T] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def set(self, result: T) -> None:
        """Tell all who wait, and who ever will. Only the first result counts."""
        if self._done is not None:
            return
        self._done = self._loop.create_future()
        self._done.set_result(result)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(result)
