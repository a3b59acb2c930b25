"""Stands between clients and a PostgreSQL server, and cuts a connection around the request that was chosen.

It has a thread and a loop of its own, so that whoever uses it may block.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from typing import Literal, Self

from msgspec import Struct

Kind = Literal["writer", "heart", "listener", "other"]
Moment = Literal["before", "during", "after"]
"""Of a request: it never reaches the server; it does, and nobody waits for it; it is done, and the reply is lost."""
MOMENTS: tuple[Moment, ...] = ("before", "during", "after")

# How each kind of connection of a store gives itself away.
_MARKS: tuple[tuple[bytes, Kind], ...] = (
    (b"force_generic_plan", "writer"),
    (b'listen "', "listener"),
    (b"make_interval", "heart"),
)
_READY, _IDLE = b"Z\x00\x00\x00\x05", b"I"


class Cut(Struct):
    """A cut to come: at the request of such a connection that comes after so many others."""

    kind: Kind
    moment: Moment
    skip: int = 0


class PostgresProxy:
    """Listens on `port`. A context manager."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.port = 0
        self._cuts: list[Cut] = []
        self.done: Counter[tuple[Kind, Moment]] = Counter()
        """How many cuts there were."""
        self.requests: Counter[Kind] = Counter()
        self._guard = threading.Lock()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.cancel)
        self._thread.join()

    def cut(self, kind: Kind, moment: Moment, *, skip: int = 0) -> None:
        """Cut the connection of the next request on such a connection, or of a later one."""
        with self._guard:
            self._cuts.append(Cut(kind, moment, skip))

    def cancel(self) -> None:
        """Cut nothing any more."""
        with self._guard:
            self._cuts.clear()

    def _due(self, kind: Kind) -> Moment | None:
        with self._guard:
            self.requests[kind] += 1
            for cut in self._cuts:
                if cut.kind == kind:
                    if cut.skip == 0:
                        self._cuts.remove(cut)
                        self.done[kind, cut.moment] += 1
                        return cut.moment
                    cut.skip -= 1
        return None

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.current_task()  # type: ignore[assignment]
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
            others = asyncio.all_tasks() - {self._over}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    _over: asyncio.Task[None]

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        ends = {writer, to_server}
        self._writers |= ends
        losing = asyncio.Event()
        replies = asyncio.ensure_future(_answer(from_server, writer, losing))
        requests = asyncio.ensure_future(self._ask(reader, to_server, losing))
        try:
            await asyncio.wait({replies, requests}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (replies, requests):
                one.cancel()
            self._writers -= ends
            for end in ends:
                end.close()

    async def _ask(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        kind: Kind = "other"
        while text := await _read(reader):
            found = next((kind for mark, kind in _MARKS if mark in text), kind)
            # What introduces a connection is no request, nor is a statement that is only prepared.
            moment = self._due(kind) if found == kind and _does_something(text) else None
            kind = found
            if moment == "before":
                return
            if moment == "after":
                losing.set()
            server.write(text)
            with suppress(OSError):
                await server.drain()
            if moment == "during":
                return
        # The client has hung up: what it asked for last is still done by the server.


def _does_something(text: bytes) -> bool:
    """Whether a statement is executed by these messages, each of which has a type and a length."""
    place = 0
    while place + 5 <= len(text):
        if text[place : place + 1] in (b"B", b"Q"):
            return True
        place += 1 + int.from_bytes(text[place + 1 : place + 5], "big")
    return False


async def _answer(reader: asyncio.StreamReader, client: asyncio.StreamWriter, losing: asyncio.Event) -> None:
    kept = b""
    while text := await _read(reader):
        if losing.is_set():
            # The reply is lost that says that all is done; those in the middle of a transaction are passed on.
            kept += text
            if kept[-6:-1] != _READY:
                continue
            if kept[-1:] == _IDLE:
                return
            text, kept = kept, b""
        client.write(text)
        with suppress(OSError):
            await client.drain()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1 << 16)
    except OSError:
        return b""
