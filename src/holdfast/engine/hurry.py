"""What is done on the way out, for as long as there is time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_A_MOMENT = 1.0


async def unless_hurried(work: Coroutine[Any, Any, Any], hurry: asyncio.Event) -> bool:
    """Do the work. Once there is hurry it has only a moment more: whether it was done."""
    task, rushed = asyncio.ensure_future(work), asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait({task, rushed}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=_A_MOMENT)
        if task.done():
            task.result()
            return True
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # of no interest any more
        return False
    finally:
        rushed.cancel()
        task.cancel()
