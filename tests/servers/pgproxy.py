"""Stands between clients and a PostgreSQL server: counts what is asked, and loses or keeps back what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_STARTUP = 196608
_ASKS_FOR_REPLY = (b"S", b"Q")  # Sync and Query: the client then waits until the server is ready again
_STATEMENT = (b"E", b"Q")


class PgProxy:
    """One that listens on `port`. Belongs to the event loop of the test."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.port = 0
        self.round_trips = 0
        self.statements = 0
        self.lose_next = ""
        """A piece of a message: the reply to the one that has it is lost, once, and the connection cut."""
        self.lost = asyncio.Event()
        self.refuse = 0
        """How many connections are still to be closed at once."""
        self.open = asyncio.Event()
        """While this is not set, replies are kept back."""
        self.open.set()
        self.heard = asyncio.Event()
        """Set when something has been asked; for the test to clear."""
        self._writers: set[asyncio.StreamWriter] = set()

    def count(self) -> tuple[int, int]:
        """The round trips and the statements since this was last asked."""
        counted = self.round_trips, self.statements
        self.round_trips = self.statements = 0
        return counted

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if self.refuse:
            self.refuse -= 1
            writer.close()
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers |= {writer, to_server}
        losing = asyncio.Event()
        answers = asyncio.ensure_future(self._answers(from_server, writer, losing))
        try:
            code = 0
            while code != _STARTUP:
                head = await reader.readexactly(8)
                code = int.from_bytes(head[4:], "big")
                to_server.write(head + await reader.readexactly(int.from_bytes(head[:4], "big") - 8))
            while True:
                kind, length = await reader.readexactly(1), await reader.readexactly(4)
                body = await reader.readexactly(int.from_bytes(length, "big") - 4)
                self._note(kind, body, losing)
                to_server.write(kind + length + body)
                await to_server.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        finally:
            if not losing.is_set():
                answers.cancel()
            for one in (writer, to_server) if not losing.is_set() else (writer,):
                one.close()

    def _note(self, kind: bytes, body: bytes, losing: asyncio.Event) -> None:
        if self.lose_next and self.lose_next.encode() in body:
            self.lose_next = ""
            losing.set()
        self.statements += kind in _STATEMENT
        if kind in _ASKS_FOR_REPLY:
            self.round_trips += 1
            self.heard.set()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        with suppress(OSError):
            while text := await reader.read(1 << 16):
                await self.open.wait()
                if losing.is_set():
                    # Only when the server has done it all is it lost.
                    if _is_ready(text):
                        self.lost.set()
                        break
                    continue
                writer.write(text)
                await writer.drain()
            writer.close()

    def cut(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()


def _is_ready(text: bytes) -> bool:
    return text[-6:-1] == b"Z\x00\x00\x00\x05"


@asynccontextmanager
async def pgproxy_to(server_port: int) -> AsyncIterator[PgProxy]:
    """A proxy to the server that listens on that port."""
    proxy = PgProxy(server_port)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 26)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        proxy.cut()
        await listening.wait_closed()
