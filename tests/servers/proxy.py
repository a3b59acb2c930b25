"""Stands between a client and a Redis server: counts what is asked, and loses or keeps back what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Proxy:
    """One that listens on `port`. Belongs to the event loop of the test."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self.port = 0
        self.asked: list[str] = []
        """The name of every command, in order."""
        self.lose_next = ""
        """The command whose reply is lost, once: it is done, and the connection is cut."""
        self.lost = asyncio.Event()
        self.open = asyncio.Event()
        """While this is not set, replies are kept back."""
        self.open.set()
        self.heard = asyncio.Event()
        """Set when a command has come in; for the test to clear."""
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        from_server, to_server = await asyncio.open_unix_connection(str(self._server), limit=1 << 26)
        self._writers |= {writer, to_server}
        losing = asyncio.Event()
        answers = asyncio.ensure_future(self._answers(from_server, writer, losing))
        try:
            while command := await self._command(reader):
                name, text = command
                self.asked.append(name)
                if name == self.lose_next:
                    self.lose_next = ""
                    losing.set()
                to_server.write(text)
                await to_server.drain()
                self.heard.set()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        finally:
            answers.cancel()
            for one in (writer, to_server):
                one.close()

    async def _command(self, reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
        parts = [await reader.readline()]
        if not parts[0]:
            return None
        name = ""
        for _ in range(int(parts[0][1:])):
            parts.append(await reader.readline())
            parts.append(await reader.readexactly(int(parts[-1][1:]) + 2))
            name = name or parts[-1][:-2].decode().upper()
        return name, b"".join(parts)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        with suppress(OSError):
            while text := await reader.read(1 << 16):
                await self.open.wait()
                if losing.is_set():
                    self.lost.set()
                    break
                writer.write(text)
                await writer.drain()
            writer.close()

    def cut(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()


@asynccontextmanager
async def proxy_to(server: Path) -> AsyncIterator[Proxy]:
    """A proxy to the server that listens on that socket."""
    proxy = Proxy(server)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 26)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        proxy.cut()
        await listening.wait_closed()
