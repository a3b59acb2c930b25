"""The Store contract on a Redis server."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import msgspec

from holdfast.errors import StoreDamagedError, StoreError, StoreUnavailableError, StoreVersionError
from holdfast.model import Claim, Commit, Entry, Head, Mail, Owner, Posted, Query, Refusal, Reply
from holdfast.store.base import Store
from holdfast.store.redis import scripts
from holdfast.store.redis.address import address_of
from holdfast.store.redis.choosing import Chooser, LeaveOut
from holdfast.store.redis.claiming import Claimer
from holdfast.store.redis.inspecting import Inspector
from holdfast.store.redis.listening import Listener
from holdfast.store.redis.promises import read_promises
from holdfast.store.redis.records import (
    FIELDS,
    Wanted,
    entry_in,
    found_in,
    mail_in,
    mail_text,
    owner_in,
    pack,
    packed_batch,
    raw,
)
from holdfast.store.redis.scripts import VERSION
from holdfast.store.redis.server import Server

log = logging.getLogger("holdfast")

_FORGET_AFTER = 3600.0  # seconds that a dead owner stays in the list of owners
_warned: set[str] = set()


class RedisStore(Store):
    """Runs in one Redis server (no cluster) that a fleet shares, under keys that begin with a prefix.

    What it promises is what the server's settings promise: with `appendonly yes`, `appendfsync always` and
    `maxmemory-policy noeviction` it is durable and says so in `capabilities`; otherwise a warning tells what can be
    lost. Leases are measured with the server's clock. With create=False a prefix without a store is refused.
    """

    capabilities = frozenset({"shared"})

    def __init__(self, url: str, *, prefix: str | None = None, create: bool = True) -> None:
        self._address, self._create = address_of(url, prefix), create
        self._opened: _Opened | None = None
        self._told: set[str] = set()  # damaged runs that somebody knows of

    # Opening and closing

    async def open(self) -> None:
        if self._opened is not None and self._opened.server.pid == os.getpid():
            return
        if self._opened is not None:
            await self._opened.server.close()
        opened = _Opened(Server(self._address), self._leave_out)
        try:
            promises = await read_promises(opened.server)
            await self._check_version(opened.server)
        except BaseException:
            await opened.server.close()
            raise
        self._opened = opened
        self.capabilities = frozenset({"shared", "durable"} if promises.durable else {"shared"})
        for problem in promises.problems:
            if (told := f"{opened.server.where}: {problem}") not in _warned:
                _warned.add(told)
                log.warning("holdfast: %s", told)

    async def _check_version(self, server: Server) -> None:
        found = await server.ask(scripts.OPEN, "yes" if self._create else "no")
        if found == b"none":
            raise StoreUnavailableError(f"{server.where} does not exist. Name another one, or run something in it.")
        if not found.isdigit() or int(found) < VERSION:
            raise StoreDamagedError(None, None, f"{server.where} has a version that never was: {found[:20]!a}")
        if int(found) > VERSION:
            raise StoreVersionError(int(found), VERSION)

    def _here(self) -> _Opened:
        opened = self._opened
        if opened is None:
            raise StoreError(f"{self._address.shown} is not open")
        if opened.server.pid != os.getpid():
            # A forked child makes connections of its own; those of its parent stay as they are.
            opened.abandon()
            opened = self._opened = _Opened(Server(self._address), self._leave_out)
        return opened

    @property
    def _server(self) -> Server:
        return self._here().server

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            if opened.server.pid == os.getpid():
                await opened.listener.stop()
            await opened.server.close()

    # Writing

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        if not batch:
            return []
        alone = len({commit.run for commit in batch}) == 1
        found = await self._server.ask(scripts.COMMIT, packed_batch(batch))
        return [_reply(commit, *outcome, alone=alone) for commit, outcome in zip(batch, found, strict=True)]

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        return await self._here().claimer.claims(query, owner)

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        given = pack((run, mail.key or "", mail.key is not None, raw(mail_text(mail))))
        found = await self._server.ask(scripts.POST, given)
        if isinstance(found, list):
            raise StoreDamagedError(run, None, found[1].decode())
        return Posted(found.decode())

    async def delete_run(self, run: str) -> bool:
        removed = await self._server.ask(scripts.DELETE, run)
        if removed == 2:
            await self._here().inspector.forget(run)
        return bool(removed)

    # Owners

    def beat(self, owner: Owner, lease: float) -> None:
        known = msgspec.json.encode((owner.name, owner.info.decode()))
        given = pack((owner.id, raw(known), int(lease * 1000), int(_FORGET_AFTER * 1000)))
        self._server.ask_now(scripts.BEAT, given, within=min(3.0, lease / 8))

    async def retire_owner(self, owner: str) -> None:
        await self._server.ask(scripts.RETIRE, owner)

    async def list_owners(self) -> list[Owner]:
        found: list[Owner] = []
        for row in await self._server.ask(scripts.OWNERS):
            try:
                found.append(owner_in(row))
            except StoreDamagedError as error:
                self._leave_out(error)
        return sorted(found, key=lambda one: one.id)

    # Reading

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        if not ids:
            return []
        found: list[Head | None] = []
        for run, (outcome, *rest) in zip(ids, await self._here().chooser.heads(ids, Wanted(FIELDS)), strict=True):
            if outcome == b"damaged":
                raise StoreDamagedError(run, None, rest[0].decode())
            found.append(found_in(rest[0], FIELDS).head if outcome == b"" else None)
        return found

    async def list_heads(self, query: Query) -> list[Head]:
        return [one.head for one in await self._here().chooser.listed(query)]

    async def read_entries(
        self, run: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        given = pack((run, after, -1 if upto is None else upto, -1 if limit is None else limit))
        outcome, found = await self._server.ask(scripts.ENTRIES, given)
        if outcome == b"damaged":
            raise StoreDamagedError(run, None, found.decode())
        return [entry_in(run, text) for text in found]

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        return await self._here().listener.wait(seen, timeout, "ready" if ready else "any")

    async def inspect(self) -> list[tuple[str | None, str]]:
        return await self._here().inspector.problems()

    def _leave_out(self, error: StoreDamagedError) -> None:
        if str(error) not in self._told:
            self._told.add(str(error))
            log.warning("holdfast: left out: %s", error)


class _Opened:
    """What an open store works with, in one process."""

    def __init__(self, server: Server, left_out: LeaveOut) -> None:
        self.server = server
        self.chooser = Chooser(server, left_out)
        self.claimer = Claimer(server, self.chooser, left_out)
        self.listener = Listener(server.client, server.address.prefix)
        self.inspector = Inspector(server)

    def abandon(self) -> None:
        """Leave the connections to the process that made them."""
        self.server.abandon(self)


def _reply(commit: Commit, outcome: bytes, text: bytes, mail: Sequence[bytes] = (), *, alone: bool) -> Reply:
    if outcome == b"damaged":
        if alone:
            raise StoreDamagedError(commit.run, None, text.decode())
        # The other runs go on, and whoever reads this one is told.
        return Reply(Refusal.EXISTS if commit.create else Refusal.STALE)
    if outcome != b"":
        return Reply(Refusal(outcome.decode()))
    return Reply(None, mail_in(commit.run, mail)) if mail else Reply()
