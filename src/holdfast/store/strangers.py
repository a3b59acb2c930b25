"""Who listens at a port and does not answer: a server of another kind may wait for the end of a line that never comes.

Redis does that with all that PostgreSQL's driver sends, and with the beginning of TLS. Waiting longer does not help,
so after a moment of silence it is asked in a way that it understands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_SILENCE = 0.5  # seconds that are nothing special
_ANSWER_WITHIN = 2.0
_LINE = b"PING\r\n"  # Redis answers it, servers of HTTP complain of it, PostgreSQL hangs up


async def unless_a_stranger(
    reaching: Coroutine[Any, Any, T], host: str, port: int, refusal: Callable[[bytes], Exception | None]
) -> T:
    """What `reaching` gives. Raises what `refusal` makes of the bytes that are answered to PING there, if anything.

    Nothing is asked of a server that answers soon.
    """
    task = asyncio.ensure_future(reaching)
    try:
        done, _ = await asyncio.wait({task}, timeout=_SILENCE)
        refused = None if done else refusal(await _answer(host, port))
        if refused is None or task.done():
            return await task
        raise refused
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def is_redis(answer: bytes) -> bool:
    """Whether it was a Redis server that answered, even if only to say that it lets nobody in."""
    return answer.startswith((b"+PONG", b"-NOAUTH", b"-DENIED", b"-ERR", b"-LOADING", b"-MISCONF"))


async def _answer(host: str, port: int) -> bytes:
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(_LINE)
            return await reader.read(64)
    except OSError:  # a TimeoutError is one
        return b""
    finally:
        if writer is not None:
            writer.close()
