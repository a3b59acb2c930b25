"""Which runs a list shows and a claim gets: read through the indexes, page by page, and chosen in Python.

A page is read at one moment. A run has the same place in every index that it is in, so one that moves between two
pages is seen once, where it stands: never twice, and never left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core.query import matches, place
from holdfast.core.record import may_claim
from holdfast.core.transitions import ENDED
from holdfast.core.turns import first_in_turn, reached
from holdfast.errors import StoreDamagedError
from holdfast.model import Query, RunStatus
from holdfast.store.redis import scripts
from holdfast.store.redis.records import (
    FIELDS,
    LIGHT,
    Found,
    Wanted,
    found_in,
    line_in,
    pack,
    place_of,
    run_in,
    sortable,
    turn_of,
)
from holdfast.store.redis.server import Server

READ_AT_LEAST, READ_AT_MOST = 50, 500  # members of an index in one page of a list
DEPTH = 4  # of each queue that a claim looks at first, at least
_PAGE = 200
_NOBODY = "nobody"
_LAST = "~"  # behind every place
_UNFINISHED = tuple(status.value for status in RunStatus if status not in ENDED)
LeaveOut = Callable[[StoreDamagedError], None]
_decode_light = msgspec.json.Decoder(tuple[str, str, str | None])


class UnderWay(msgspec.Struct, frozen=True):
    """What counts of a run that a live owner has."""

    id: str
    flow: str
    queue: str
    key: str | None
    priority: int = 0
    created_at: float = 0.0


class Snapshot(NamedTuple):
    """What the pages script tells of one moment."""

    under_way: list[UnderWay]
    free: list[Found]
    """The runs of the claimer and of dead owners."""
    pages: list[tuple[int, bytes, list[Found]]]
    """For each index how many members were read, the last of them, and the heads that could be read."""
    asked: int
    """How many members of each were asked for."""


class Chooser:
    """Belongs to one server; `left_out` is told of damaged runs that a list does without."""

    def __init__(self, server: Server, left_out: LeaveOut) -> None:
        self._server, self._left_out = server, left_out

    async def listed(self, query: Query, *, claimer: str | None = None) -> list[Found]:
        """The heads that match, newest first; with a claimer those that it may claim, and only the light part."""
        chosen: list[Found] = []
        if query.limit <= 0:
            return chosen
        async for one in self._candidates(query, Wanted.by(query, FIELDS if claimer is None else LIGHT)):
            if matches(one.head, query, one.has_mail) and (claimer is None or may_claim(one.head, claimer)):
                chosen.append(one)
                if len(chosen) == query.limit:
                    break
        return chosen

    async def in_turn(self, query: Query, claimer: str) -> tuple[list[Found], list[str]]:
        """Those whose turn it is, and the other runs of the claimer that do not count for the limits."""
        named = await self._named(query)
        lines = [] if named is not None else await self._lines(query)
        depth, wanted = min(max(query.limit, DEPTH), READ_AT_MOST), Wanted.by(query, LIGHT)
        # Who asks for what nobody has need not be told of what it has itself, which may be much.
        asks_for_owned = query.states is None or any(owned is not False for _, owned in query.states)
        whose = claimer if asks_for_owned else _NOBODY
        while True:
            shot = await self._snapshot([index for _, _, index in lines], "-", "+", depth, wanted, claimer=whose)
            ends = _ends(shot, lines)
            found = shot.free + [one for _, _, page in shot.pages for one in page]
            if named is not None or query.idle_by is not None:
                found += [one async for one in self._of_ids(await self._due(query) if named is None else named, wanted)]
            free = {one.head.id: one for one in found if _is_free(one, query, claimer)}
            others = [one for one in shot.under_way if one.id not in free]
            known = [head for head, *_ in free.values() if turn_of(head) <= ends.get(head.queue, _LAST)]
            if ends.keys() <= {head.queue for head in known}:
                chosen = first_in_turn(known, others, query.limits, query.limit, ends)
                if chosen is not None:
                    spared = free.keys() - {head.id for head in chosen}
                    return [free[head.id] for head in chosen], [one.id for one in shot.under_way if one.id in spared]
            full, _ = reached(others, query.limits)
            if not full.isdisjoint(flow for _, flow, _ in lines):  # nothing of these is taken, however many there are
                lines = [line for line in lines if line[1] not in full]
            else:
                depth *= 8

    async def _named(self, query: Query) -> list[str] | None:
        """The ids of all runs that the query can mean, where an index names just these."""
        if query.ids is not None:
            return list(query.ids)
        if query.owner is not None:
            return await self._held_by(query.owner)
        if query.due_by is not None or query.expired_by is not None:
            return [run_in(place) for place in await self._timed(query)]
        for index, asked in (("mailed", query.has_mail), (f"children:{query.parent}", query.parent is not None)):
            if asked:
                return [run_in(place) for place in await self._server.do("ZRANGE", self._key(index), 0, -1)]
        return None

    async def _due(self, query: Query) -> list[str]:
        """The ids of the runs whose time has come, which stand in no line of those that are ready."""
        return [run_in(place) for place in await self._timed(Query(due_by=query.idle_by))]

    async def _lines(self, query: Query) -> list[tuple[str, str, str]]:
        """The queues and flows that a claim looks at, with the index for each of the statuses that it may mean."""
        wanted = _UNFINISHED if query.states is None else {status for status, _ in query.states}
        found: list[tuple[str, str, str]] = []
        for line in await self._server.do("SMEMBERS", self._key("lines")):
            try:
                queue, flow = line_in(line)
            except StoreDamagedError as error:
                self._left_out(error)
                continue
            if (query.queues is None or queue in query.queues) and (query.flows is None or flow in query.flows):
                names = [f"{status}:{line.decode()}" for status in _UNFINISHED if status in wanted]
                found += [(queue, flow, self._key(f"turn:{name}")) for name in names]
                if query.idle_by is None:
                    found += [(queue, flow, self._key(f"later:{name}")) for name in names]
        return found

    def _key(self, name: str) -> str:
        return f"{self._server.address.prefix}:{name}"

    async def _candidates(self, query: Query, wanted: Wanted) -> AsyncIterator[Found]:
        """All that could match, newest first, found by the narrowest index."""
        if query.ids is not None or query.owner is not None:
            ids: Sequence[str] = query.ids if query.ids is not None else await self._held_by(query.owner or "")
            if query.has_mail and ids:
                ids = await self._mailed(ids)
            for one in sorted([one async for one in self._of_ids(ids, wanted)], key=_place, reverse=True):
                yield one
        elif query.due_by is not None or query.expired_by is not None:
            async for one in self._of_ids(map(run_in, await self._timed(query)), wanted):
                yield one
        else:
            async for one in self._walk(query, wanted):
                yield one

    async def _mailed(self, ids: Sequence[str]) -> Sequence[str]:
        """Those of these that have mail, where fewer runs have some: their heads alone need be read."""
        some = await self._server.do("ZRANGE", self._key("mailed"), 0, len(ids) - 1)
        if len(some) == len(ids):
            return ids  # and there may be more
        mailed = {run_in(place) for place in some}
        return [run for run in ids if run in mailed]

    async def _timed(self, query: Query) -> list[bytes]:
        """The places of all runs that are due or expired, newest first."""
        index, bound = ("due", query.due_by) if query.due_by is not None else ("expiring", query.expired_by)
        return sorted(await self._server.do("ZRANGEBYSCORE", self._key(index), "-inf", repr(bound)), reverse=True)

    async def _held_by(self, owner: str) -> list[str]:
        held = await self._server.do("HGETALL", self._key("owned"))
        return [
            run.decode(errors="replace")
            for run, value in held.items()
            if value[1:].partition(b" ")[0] == owner.encode()
        ]

    async def _of_ids(self, ids: Iterable[str], wanted: Wanted) -> AsyncIterator[Found]:
        """The heads of these runs; those that are not there, or damaged, are left out."""
        for some in _chunks(list(dict.fromkeys(ids))):
            for run, (outcome, *rest) in zip(some, await self.heads(some, wanted), strict=True):
                try:
                    if outcome == b"damaged":
                        raise StoreDamagedError(run, None, rest[0].decode())
                    if outcome == b"":
                        yield found_in(rest[0], wanted.fields)
                except StoreDamagedError as error:
                    self._left_out(error)

    async def heads(self, ids: Sequence[str], wanted: Wanted) -> list[Any]:
        """What the heads script gives for each."""
        found: list[Any] = await self._server.ask(scripts.HEADS, pack(ids), wanted.packed())
        return found

    async def _walk(self, query: Query, wanted: Wanted) -> AsyncIterator[Found]:
        """Through the indexes of what the query asks for, from the newest run to the oldest."""
        indexes = [self._key(name) for name in _indexes(query)]
        upper, lower = _bounds(query)
        count = min(max(query.limit, READ_AT_LEAST), READ_AT_MOST)
        while indexes:
            shot = await self._snapshot(indexes, upper, lower, count, wanted)
            unread = [last for number, last, _ in shot.pages if number == count]
            cut = max(unread) if unread else b""
            for one in sorted((one for _, _, page in shot.pages for one in page), key=_place, reverse=True):
                if place_of(one.head.created_at, one.head.id).encode() >= cut:
                    yield one
            if not unread:
                return
            upper = f"({cut.decode()}"

    async def _snapshot(
        self,
        indexes: Sequence[str],
        start: str,
        stop: str,
        count: int,
        wanted: Wanted,
        *,
        claimer: str = "",
    ) -> Snapshot:
        given = pack((indexes, claimer == "", start, stop, count))
        owned, free, pages = await self._server.ask(scripts.PAGES, given, wanted.packed(), claimer)
        return Snapshot(
            self._under_way(owned),
            self._read(free, wanted),
            [(number, last, self._read(rows, wanted)) for number, last, rows in pages],
            count,
        )

    def _under_way(self, owned: Sequence[bytes]) -> list[UnderWay]:
        """What live owners have; what cannot be read counts for no queue and no limit, and stops nobody."""
        found: list[UnderWay] = []
        for run, value in zip(owned[::2], owned[1::2], strict=True):
            if value.startswith(b"+"):
                try:
                    found.append(UnderWay(run.decode(), *_decode_light.decode(value.partition(b" ")[2])))
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    text = f"who has it cannot be read: {error}"
                    self._left_out(StoreDamagedError(run.decode(errors="replace"), None, text))
        return found

    def _read(self, rows: Iterable[Any], wanted: Wanted) -> list[Found]:
        found: list[Found] = []
        for row in rows:
            try:
                found.append(found_in(row, wanted.fields))
            except StoreDamagedError as error:
                self._left_out(error)
        return found


def _place(one: Found) -> tuple[float, str]:
    return place(one.head)


def _chunks(ids: list[str]) -> list[list[str]]:
    return [ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE)]


def _indexes(query: Query) -> list[str]:
    if query.parent is not None:
        return [f"children:{query.parent}"]
    if query.has_mail:
        return ["mailed"]
    if query.states is not None:
        return sorted({f"in:{status}" for status, _ in query.states})
    return ["runs"]


def _bounds(query: Query) -> tuple[str, str]:
    """From where to where of an index, in the order of its bytes, the query may mean."""
    upper = [sortable(query.created_before)] if query.created_before is not None else []
    upper += [place_of(*query.after)] if query.after is not None else []
    return f"({min(upper)}" if upper else "+", "-" if query.created_from is None else f"[{sortable(query.created_from)}"


def _ends(shot: Snapshot, lines: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """For each queue that has more than was read, the place up to which all that stand in it are known."""
    ends: dict[str, str] = {}
    for (queue, _, _), (number, last, _) in zip(lines, shot.pages, strict=True):
        if number == shot.asked:
            ends[queue] = min(last.decode(), ends.get(queue, _LAST))
    return ends


def _is_free(one: Found, query: Query, claimer: str) -> bool:
    """Whether the claimer could be given this run."""
    head = one.head
    return head.status not in ENDED and may_claim(head, claimer) and matches(head, query, one.has_mail)
