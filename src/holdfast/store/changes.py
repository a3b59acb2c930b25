"""Wakes those who wait for a change, at once and on whatever thread or event loop they are."""

from __future__ import annotations

import asyncio
import threading


class Changes:
    """A counter of changes that can be waited on. Safe to use from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._count = 1  # never 0, which callers begin with and which returns at once
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def count(self) -> int:
        """What a waiter has seen when it has seen everything so far."""
        return self._count

    def note(self) -> None:
        """Say that something changed. Call it after the change can be read."""
        with self._guard:
            self._count += 1
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            try:
                loop.call_soon_threadsafe(_wake, waiter)
            except RuntimeError:  # that loop is closed: nobody waits there any more
                pass

    async def wait(self, seen: int, timeout: float) -> int:
        """Return the count once it is not `seen`, or after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._guard:
            if self._count != seen:
                return self._count
            self._waiters.append((loop, waiter))
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            with self._guard:
                self._waiters = [entry for entry in self._waiters if entry[1] is not waiter]
        return self._count


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
