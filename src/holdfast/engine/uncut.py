"""Work that goes on when whoever waits for it is cancelled: what is half written would be worse than what is late."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def uncut(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of work that is done to its end, also when whoever waits for it is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cut = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cut = True
    if cut:
        task.exception()
        raise asyncio.CancelledError
    return task.result()
