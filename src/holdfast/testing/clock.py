"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class ManualClock:
    """Time that passes only by `advance`. Sleepers wake when their time has come."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Seconds since the epoch, as set by the test."""
        return self._now

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Ends when the test has moved the clock on by `seconds`, counted from this call, not from the await."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if seconds <= 0:
            sleeper.set_result(None)
        else:
            self._sleepers.append((self._now + seconds, sleeper))
        return sleeper

    def advance(self, seconds: float) -> None:
        """Let time pass, and wake the sleepers of this event loop whose time has come."""
        self._now += seconds
        for due, sleeper in sorted(self._sleepers, key=lambda pair: pair[0]):
            if due <= self._now and not sleeper.done():
                sleeper.set_result(None)
        self._sleepers = [pair for pair in self._sleepers if not pair[1].done()]
