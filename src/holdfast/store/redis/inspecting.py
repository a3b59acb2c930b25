"""Whether every run is whole, and in the indexes where it must be and nowhere else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from holdfast.errors import StoreDamagedError
from holdfast.store.redis import scripts
from holdfast.store.redis.records import line_in, owner_in, pack
from holdfast.store.redis.server import Server

_PAGE = 200
_OF_RUNS = ("head", "log", "mail", "used")
_INDEXES = ("runs", "in", "turn", "later", "due", "expiring", "children", "mailed")


class Inspector:
    """Looks at one store. Runs may be live meanwhile: each is looked at at one moment."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def problems(self) -> list[tuple[str | None, str]]:
        """Everything that is wrong; changes nothing."""
        runs, indexes = await self._keys()
        found = [(run, text) for run, text, *_ in await self._of_runs(sorted(runs))]
        known = {run for run, _ in found}
        found += [(run, text) for run, text, *_ in await self._of_indexes(sorted(indexes)) if run not in known]
        found += [("", text) for text in await self._of_shared()]
        return [(run or None, text) for run, text in found]

    async def forget(self, run: str) -> None:
        """Take a run that is gone out of the indexes that still name it."""
        _, indexes = await self._keys()
        for gone, _, index, member in await self._of_indexes(sorted(indexes)):
            if gone == run and index:
                await self._server.do("ZREM", index, member)

    async def _keys(self) -> tuple[set[str], set[str]]:
        """The runs that have a key, and the indexes."""
        start = self._server.address.prefix + ":"
        runs: set[str] = set()
        indexes: set[str] = set()
        cursor, first = 0, True
        while cursor or first:
            # A prefix holds none of the characters that mean something in a pattern.
            found, keys = await self._server.do("SCAN", cursor, "MATCH", f"{start}*", "COUNT", 1000)
            cursor, first = int(found), False
            for key in (key.decode(errors="replace") for key in keys):
                kind, _, rest = key.removeprefix(start).partition(":")
                if kind in _OF_RUNS:
                    runs.add(rest)
                elif kind in _INDEXES:
                    indexes.add(key)
        return runs, indexes

    async def _of_runs(self, runs: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = []
        for start in range(0, len(runs), _PAGE):
            found += (await self._check(runs[start : start + _PAGE], [], 0))[0]
        return found

    async def _of_indexes(self, indexes: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = []
        start, more = 0, bool(indexes)
        while more:
            some, more = await self._check([], indexes, start)
            found += some
            start += _PAGE
        return found

    async def _of_shared(self) -> list[str]:
        """What lists of owners and claims leave out."""
        lines = self._server.address.prefix + ":lines"
        found = await _unreadable(self._server.ask(scripts.OWNERS), owner_in)
        return found + await _unreadable(self._server.do("SMEMBERS", lines), line_in)

    async def _check(self, runs: Sequence[str], indexes: Sequence[str], start: int) -> tuple[list[list[str]], bool]:
        given = pack((indexes, start, _PAGE))
        problems, more = await self._server.ask(scripts.CHECK, pack(runs), given)
        return [[part.decode(errors="replace") for part in problem] for problem in problems], more == 1


async def _unreadable(asked: Awaitable[Iterable[Any]], read: Callable[[Any], object]) -> list[str]:
    found: list[str] = []
    try:
        for one in await asked:
            try:
                read(one)
            except StoreDamagedError as error:
                found.append(error.problem)
    except StoreDamagedError as error:  # a key of another type
        found.append(error.problem)
    return found
