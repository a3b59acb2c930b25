"""Claims: runs are chosen by what was seen of them, and taken if they are still like that."""

from __future__ import annotations

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
        again, in_vain = True, 0
        while again and in_vain < TRIES and len(claims) < query.limit:
            done = tuple(claim.head.id for claim in claims)
            left = replace(query, limit=query.limit - len(claims), but=(*query.but, *done))
            try:
                again = await self._claim(left, owner, claims)
            except StoreError:
                if claims:  # the caller owns these already and must know it
                    return claims
                raise
            in_vain = in_vain + 1 if len(claims) == len(done) else 0
        return claims

    async def _claim(self, query: Query, owner: str, claims: list[Claim]) -> bool:
        """Claim the runs that are as they were seen; whether to look again because others were not."""
        spared: list[str] = []
        if query.in_turn:
            chosen, spared = await self._chooser.in_turn(query, owner)
        else:
            chosen = await self._chooser.listed(query, claimer=owner)
        limits = _limits(query)
        for start in range(0, len(chosen), _TOGETHER):
            some = chosen[start : start + _TOGETHER]
            given = pack((owner, limits, spared, [(one.head.id, raw(one.rev)) for one in some]))
            replies = await self._server.ask(scripts.CLAIM, given, pack(FIELDS))
            damaged: list[StoreDamagedError] = []
            for one, reply in zip(some, replies, strict=True):
                try:
                    claims += _claimed(one.head.id, *reply)
                except StoreDamagedError as error:
                    damaged.append(error)
            for harm in damaged:
                await self._give_back(harm, owner, alone=query.ids == (harm.run_id,))
            if any(outcome == b"changed" for outcome, *_ in replies):
                return True
        return False

    async def _give_back(self, error: StoreDamagedError, owner: str, *, alone: bool) -> None:
        """Own no run that cannot be gone on with; who asked for this very run is told."""
        run = error.run_id or ""
        fence = await self._server.do("HGET", f"{self._server.address.prefix}:head:{run}", "fence")
        if fence is not None and fence.isdigit():
            change = HeadChange(owner=None)
            await self._server.ask(
                scripts.COMMIT, packed_batch([Commit(run=run, owner=owner, fence=int(fence), change=change)])
            )
        if alone:
            raise error
        self._left_out(error)


def _limits(query: Query) -> list[tuple[str, int, int]]:
    """The limits as the script takes them."""

    def number(most: int | None) -> int:
        return -1 if most is None else most

    limits = query.limits if query.in_turn else ()
    return [(limit.flow, number(limit.most), number(limit.most_per_key)) for limit in limits]


def _claimed(run: str, outcome: bytes, *rest: Any) -> list[Claim]:
    """What one run's part of a claim came to. Raises StoreDamagedError when it cannot be read."""
    if outcome == b"damaged":
        raise StoreDamagedError(run, None, rest[0].decode())
    if outcome != b"":
        return []
    row, entries, mail = rest
    return [Claim(found_in(row, FIELDS).head, tuple(entry_in(run, text) for text in entries), mail_in(run, mail))]
