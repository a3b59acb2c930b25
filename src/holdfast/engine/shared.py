"""One result that many may wait for."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Set once. Each waiter has a future of its own, so whoever gives up the wait takes nothing from the others.

    That is what `asyncio.shield` is for as well, at three times the cost, and every run is waited for.
    """

    __slots__ = ("_is_set", "_loop", "_result", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[asyncio.Future[T]] | None = None
        self._is_set = False
        self._result: T

    def wait(self) -> asyncio.Future[T]:
        """What to await for the result."""
        waiter: asyncio.Future[T] = self._loop.create_future()
        self.tell(waiter)
        return waiter

    def tell(self, waiter: asyncio.Future[T]) -> None:
        """Let this future have the result."""
        if self._is_set:
            waiter.set_result(self._result)
        elif self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)

    def set(self, result: T) -> None:
        """Tell all who wait, and who ever will. Only the first result counts."""
        if self._is_set:
            return
        self._result, self._is_set = result, True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(result)
