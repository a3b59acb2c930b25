"""This runtime as an owner of runs: who it is, and the heartbeat that says it is alive."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import new_owner
from holdfast.engine.shared import Shared
from holdfast.engine.trouble import Trouble
from holdfast.errors import StoreError, UsageError
from holdfast.model import Owner
from holdfast.store.base import Store

log = logging.getLogger("holdfast")


class Ownership:
    """Nothing is written before the first run is owned: a runtime that only reads leaves no trace.

    The heartbeat has a thread of its own, so it does not depend on the user's event loop being free.
    """

    describe: Callable[[], dict[str, Any]] = staticmethod(dict)
    """What this owner says of itself, asked for at every beat, on whatever thread."""

    def __init__(self, store: Store, *, lease: float, heartbeat: float, name: str | None = None) -> None:
        self._store, self._lease, self._heartbeat = store, lease, heartbeat
        self.owner = Owner(new_owner(), name or f"{socket.gethostname()}:{os.getpid()}")
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._beginning: Shared[Exception | None] | None = None
        self._ended: Shared[None] | None = None
        """Set when the thread has beaten for the last time."""
        self.begun = False
        """Whether the store knows this owner as alive."""

    @property
    def id(self) -> str:
        return self.owner.id

    async def begin(self) -> None:
        """Return when the store knows this owner as alive."""
        if self.begun:
            return
        if self._beginning is None:
            self._start(Shared[Exception | None](self._loop))
        assert self._beginning is not None
        error = await self._beginning.wait()
        if error is not None:
            raise error
        if self._stop.is_set():
            raise UsageError("this Runtime is shutting down and starts nothing any more")

    @property
    def may_begin_here(self) -> bool:
        """Whether nothing has begun yet, and nothing is coming to its end."""
        return self._beginning is None and not self._stop.is_set()

    def introduction(self) -> tuple[Owner, float]:
        """What the store is told of this owner, with its lease."""
        return replace(self.owner, info=msgspec.json.encode(self.describe())), self._lease

    def introduced(self) -> None:
        """The store has got to know this owner by the commit of its first run: go on saying that it lives."""
        beginning = Shared[Exception | None](self._loop)
        self._start(beginning, beats=False)
        self._first_beat_done(beginning, None)

    def _start(self, beginning: Shared[Exception | None], *, beats: bool = True) -> None:
        ended = Shared[None](self._loop)
        thread = threading.Thread(
            target=self._run, args=(beginning if beats else None, ended), name="holdfast-heartbeat", daemon=True
        )
        thread.start()  # where there are too many already, this raises, and nothing has begun
        self._beginning, self._ended, self._thread = beginning, ended, thread

    def _beat(self) -> None:
        self._store.beat(*self.introduction())

    def _run(self, beginning: Shared[Exception | None] | None, ended: Shared[None]) -> None:
        """Beat until stopped; the first time at once, if somebody waits for it."""
        error: Exception | None = None
        try:
            if beginning is not None:
                try:
                    self._beat()
                except Exception as caught:
                    error = caught
                self._tell(self._first_beat_done, beginning, error)
            if error is None:
                self._go_on_beating()
        finally:
            self._tell(ended.set, None)

    def _tell(self, what: Callable[..., None], *about: Any) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it whoever waits
            self._loop.call_soon_threadsafe(what, *about)

    def _first_beat_done(self, beginning: Shared[Exception | None], error: Exception | None) -> None:
        self.begun = error is None
        if error is not None:
            self._beginning = None  # whoever comes next tries again
        beginning.set(error)

    def _go_on_beating(self) -> None:
        trouble = Trouble(f"the heartbeat of {self.owner.name} failed")
        # A loop that is gone drives nothing any more, whether or not somebody said so: let the lease run out.
        while not (self._stop.wait(self._heartbeat) or self._loop.is_closed()):
            try:
                self._beat()
                trouble.over()
            except Exception as error:
                # A missed beat only lets others take over sooner; the fence keeps that safe.
                trouble.met(error)

    async def end(self) -> None:
        """Stop beating and let others claim at once what is still owned."""
        self._stop.set()
        if self._ended is not None:
            await self._ended.wait()  # and not joined by another thread: nobody could stop waiting for that one
        if self.begun:
            try:
                await self._store.retire_owner(self.owner.id)
            except StoreError as error:
                log.warning(
                    "holdfast: %s could not sign off: %s. Its lease runs out by itself.", self.owner.name, error
                )
            else:
                self.begun = False
