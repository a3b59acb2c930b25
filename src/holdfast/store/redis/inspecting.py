"""Whether every run is whole, and in the indexes where it must be and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast.store.redis import scripts
from holdfast.store.redis.records import pack, raw
from holdfast.store.redis.server import Server

_PAGE = 200
_OF_RUNS = ("head", "log", "mail", "used")
_INDEXES = ("runs", "in", "turn", "due", "expiring", "children", "mailed")


class Inspector:
    """Looks at one store. Runs may be live meanwhile: each is looked at at one moment."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def problems(self) -> list[tuple[str | None, str]]:
        """Everything that is wrong; changes nothing."""
        runs, indexes, found = await self._keys()
        found += [(run.decode(), text.decode()) for run, text, *_ in await self._check(sorted(runs), "", [])]
        known = {run for run, _ in found}
        for index in sorted(indexes):
            found += [
                (run.decode(), text.decode())
                for run, text, *_ in await self._check([], index, await self._members(index))
                if run.decode() not in known
            ]
        return found

    async def forget(self, run: str) -> None:
        """Take a run that is gone out of the indexes that still name it."""
        _, indexes, _ = await self._keys()
        for index in indexes:
            members = [member for member in await self._members(index) if member.endswith(run.encode())]
            for gone, _, *member in await self._check([], index, members):
                if gone.decode() == run:
                    await self._server.do("ZREM", index, *member)

    async def _keys(self) -> tuple[set[str], set[str], list[tuple[str | None, str]]]:
        """The runs that have a key, the indexes, and what else stands under the prefix and is not ours."""
        start = self._server.address.prefix + ":"
        runs: set[str] = set()
        indexes: set[str] = set()
        strange: list[tuple[str | None, str]] = []
        async for key in self._scan(start):
            kind, _, rest = key.removeprefix(start).partition(":")
            if kind in _OF_RUNS:
                runs.add(rest)
            elif kind in _INDEXES:
                indexes.add(key)
        for index in sorted(indexes):
            if await self._server.do("TYPE", index) not in (b"zset", b"none"):
                indexes.discard(index)
                strange.append((None, f"{index!a} is a key of another type"))
        return runs, indexes, strange

    async def _scan(self, start: str) -> AsyncIterator[str]:
        """Every key that begins so. A prefix holds none of the characters that mean something in a pattern."""
        cursor: int | bytes = 0
        while True:
            cursor, keys = await self._server.do("SCAN", cursor, "MATCH", f"{start}*", "COUNT", 1000)
            for key in keys:
                yield key.decode(errors="replace")
            if int(cursor) == 0:
                return

    async def _members(self, index: str) -> list[bytes]:
        members: list[bytes] = await self._server.do("ZRANGE", index, 0, -1)
        return members

    async def _check(self, runs: Sequence[str], index: str, members: Sequence[bytes]) -> list[Any]:
        found: list[Any] = []
        for start in range(0, max(len(runs), len(members)), _PAGE):
            page = slice(start, start + _PAGE)
            found += await self._server.ask(
                scripts.CHECK,
                pack(runs[page]),
                pack([index, [raw(member) for member in members[page]]] if index else []),
            )
        return found
