"""Looks for damage in a store: its structure, every checksum, every chain, every checkpoint.

Runs may be live meanwhile. A run is read up to the entry that its head names, and looked at again
when its head has moved on and something seemed wrong: retention may have dropped what was just read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from msgspec.structs import replace

from holdfast.core.events import events_of
from holdfast.core.history import Fold, log_problem, read_body
from holdfast.core.soundness import Soundness
from holdfast.core.transitions import ENDED
from holdfast.engine.views import run_view
from holdfast.errors import StoreDamagedError
from holdfast.model import Entry, Head, Kind, Problem, Query
from holdfast.store.base import Store

_PAGE = 200
_LOOKS = 5


async def examine(store: Store, looked_at: Callable[[str], object] = lambda run: None) -> AsyncIterator[Problem]:
    """Every problem of the store, those of its own structure first; `looked_at` is told of every run."""
    told: dict[str, list[str]] = {}
    try:
        for run, text in await store.inspect():
            if run is not None:
                looked_at(run)  # a list may leave it out
                told.setdefault(run, []).append(text)
            yield Problem(run, None, text)
    except Exception as error:  # a tampered store may make anything fail: that is a finding, not a reason to stop
        yield _broken(None, "its structure cannot be checked", error)
    query = Query(limit=_PAGE)
    while True:
        try:
            heads = await store.list_heads(query)
        except Exception as error:
            yield _broken(None, "the list of its runs cannot be read", error)
            return
        for head in heads:
            looked_at(head.id)
            for problem in await _examine_run(store, head, told.get(head.id, [])):
                yield problem
        if len(heads) < _PAGE:
            return
        query = replace(query, after=(heads[-1].created_at, heads[-1].id))


async def _examine_run(store: Store, head: Head, told: list[str]) -> list[Problem]:
    problems: list[Problem] = []
    for _ in range(_LOOKS):
        try:
            problems = await _Checkup(store, head).problems()
            again = (await store.read_heads([head.id]))[0] if problems else head
        except Exception as error:
            if isinstance(error, StoreDamagedError) and any(text.startswith(error.problem) for text in told):
                return []  # the store's own check has found that already
            return [_broken(head.id, "it cannot be read", error)]
        if again == head:
            break
        if again is None:
            return []  # deleted meanwhile
        head = again
    return problems


class _Checkup:
    """One look at one run."""

    def __init__(self, store: Store, head: Head) -> None:
        self._store, self._head = store, head
        self._fold, self._soundness = Fold(head.id), Soundness(head.id)
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._found: list[Problem] = []

    async def problems(self) -> list[Problem]:
        after = 0
        while True:
            page = await self._store.read_entries(self._head.id, after=after, upto=self._head.seq, limit=_PAGE)
            for entry in page:
                self._add(entry)
            if len(page) < _PAGE:
                break
            after = page[-1].seq
        self._check_head()
        return self._found

    def _note(self, seq: int | None, text: str) -> None:
        self._found.append(Problem(self._head.id, seq, text))

    def _add(self, entry: Entry) -> None:
        self._first, self._last = self._first or entry, entry
        pending = self._fold.pending
        try:
            self._fold.add(entry)
            events_of(self._head.id, entry)
            problem = self._soundness.problem(entry, pending, whole=not self._found)
            if problem is not None:
                self._note(entry.seq, problem)
        except StoreDamagedError as error:
            self._note(error.seq, error.problem)
            self._fold.point = None  # what builds on it cannot be rebuilt either, up to the next snapshot
        except (KeyError, TypeError, ValueError) as error:
            self._note(entry.seq, f"its body cannot be read: {error!r}")

    def _check_head(self) -> None:
        head, first, last = self._head, self._first, self._last
        try:
            run_view(head)
        except StoreDamagedError as error:
            self._note(None, error.problem)
        if first is None or last is None:
            self._note(None, "the run has no log")
            return
        if first.seq > head.floor and not self._has_lapsed():
            self._note(head.floor, "the entry is missing")
        if last.fence > head.fence:
            self._note(last.seq, "it was written under a fence that the run has not reached")
        contradiction = log_problem(head, [last])
        if contradiction is not None:
            self._note(last.seq, contradiction)
        self._check_end(head, last)

    def _check_end(self, head: Head, last: Entry) -> None:
        point = self._fold.point
        if self._found:
            return  # the end of a damaged chain says nothing new
        if point is not None and point.base != head.base:
            self._note(point.seq, f"its segment begins at {point.base}, but the run says {head.base}")
        expired = head.status in ENDED and (last.kind != Kind.COMPLETED or "expired" in read_body(head.id, last))
        if point is None and not expired and not self._has_lapsed():
            self._note(None, "no checkpoint is left in its log")

    def _has_lapsed(self) -> bool:
        """Whether the store itself may have dropped all but the last entry, when it expired; the next prune says so."""
        head, first = self._head, self._first
        return head.status in ENDED and head.expires_at is not None and first is not None and first.seq == head.seq


def _broken(run: str | None, what: str, error: Exception) -> Problem:
    seq = error.seq if isinstance(error, StoreDamagedError) else None
    return Problem(run, seq, f"{what}: {error if isinstance(error, StoreDamagedError) else repr(error)}")
