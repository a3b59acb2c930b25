"""Time as the runtime sees it. Tests put a clock of their own in its place."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where now comes from, and how to wait."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed on this clock."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
