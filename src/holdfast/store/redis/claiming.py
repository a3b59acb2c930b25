"""Claims: runs are chosen by what was seen of them, and taken if they are still like that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.errors import StoreDamagedError, StoreError
from holdfast.model import Claim, Commit, HeadChange, Query
from holdfast.store.redis import scripts
from holdfast.store.redis.choosing import Chooser, LeaveOut
from holdfast.store.redis.records import FIELDS, entry_in, found_in, mail_in, pack, packed_batch, raw
from holdfast.store.redis.server import Server

_TOGETHER = 100  # runs claimed by one script
TRIES = 10  # in a row that may be in vain, because others were faster


class Claimer:
    """Belongs to one server; `left_out` is told of damaged runs that a claim does without."""

    def __init__(self, server: Server, chooser: Chooser, left_out: LeaveOut) -> None:
        self._server, self._chooser, self._left_out = server, chooser, left_out

    async def claims(self, query: Query, owner: str) -> list[Claim]:
        """What this owner gets with this query."""
        claims: list[Claim] = []
        done: list[str] = []  # what was claimed, or found damaged: the others get their turn then
        again, in_vain = True, 0
        while again and in_vain < TRIES and len(claims) < query.limit:
            before = len(done)
            left = replace(query, limit=query.limit - len(claims), but=(*query.but, *done))
            try:
                again = await self._claim(left, owner, claims, done)
            except StoreError:
                if claims:  # the caller owns these already and must know it
                    return claims
                raise
            in_vain = in_vain + 1 if len(done) == before else 0
        return claims

    async def _claim(self, query: Query, owner: str, claims: list[Claim], done: list[str]) -> bool:
        """Claim the runs that are as they were seen; whether to look again because some were not, or are damaged."""
        spared: list[str] = []
        if query.in_turn:
            chosen, spared = await self._chooser.in_turn(query, owner)
        else:
            chosen = await self._chooser.listed(query, claimer=owner)
        limits = _limits(query)
        for start in range(0, len(chosen), _TOGETHER):
            some = [(one.head.id, raw(one.rev)) for one in chosen[start : start + _TOGETHER]]
            replies = await self._server.ask(scripts.CLAIM, pack((owner, limits, spared, some)), pack(FIELDS))
            got, damaged = _read([(run, *reply) for (run, _), reply in zip(some, replies, strict=True)])
            claims += got
            done += [*(claim.head.id for claim in got), *(run for run, _, _ in damaged)]
            for run, error, row in damaged:
                if row is not None:
                    await self._give_back(run, row, owner)
                if query.ids == (run,):  # who asked for this very run is told
                    raise error
                self._left_out(error)
            if len(got) < len(some):
                return True
        return False

    async def _give_back(self, run: str, row: Any, owner: str) -> None:
        """Let a run that cannot be gone on with be as if it had not been taken up, and call nobody to it."""
        _, _, values = row
        fence, attempt = (int(values[FIELDS.index(name)]) for name in ("fence", "attempt"))
        change = HeadChange(owner=None, attempt=attempt - 1)
        batch = packed_batch([Commit(run=run, owner=owner, fence=fence, change=change)])
        await self._server.ask(scripts.COMMIT, batch, "quiet")


def _limits(query: Query) -> list[tuple[str, int, int]]:
    """The limits as the script takes them."""

    def number(most: int | None) -> int:
        return -1 if most is None else most

    limits = query.limits if query.in_turn else ()
    return [(limit.flow, number(limit.most), number(limit.most_per_key)) for limit in limits]


def _read(replies: Iterable[Sequence[Any]]) -> tuple[list[Claim], list[tuple[str, StoreDamagedError, Any]]]:
    """What was claimed, and which runs are damaged, with the rows of those that are owned now all the same."""
    claims: list[Claim] = []
    damaged: list[tuple[str, StoreDamagedError, Any]] = []
    for run, outcome, *rest in replies:
        if outcome == b"damaged":
            damaged.append((run, StoreDamagedError(run, None, rest[0].decode()), None))
        elif outcome == b"":
            row, entries, mail = rest
            try:
                log = tuple(entry_in(run, text) for text in entries)
                claims.append(Claim(found_in(row, FIELDS).head, log, mail_in(run, mail)))
            except StoreDamagedError as error:
                damaged.append((run, error, row))
    return claims, damaged
