"""Time as the runtime sees it. Tests put a clock of their own in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol


class Clock(Protocol):
    """Where now comes from, and how to wait."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Something to await that ends when `seconds` have passed on this clock."""
        ...


class SystemClock:
    """The machine's own clock."""

    now = staticmethod(time.time)  # with no frame of its own: every step asks several times

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
