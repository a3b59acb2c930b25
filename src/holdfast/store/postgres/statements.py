"""Which statements write the commits of a batch, and what they bind: a column of many rows is one array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace
from psycopg.types.numeric import Int8

from holdfast.core.record import is_empty
from holdfast.model import Commit, Entry
from holdfast.store.columns import stored_of
from holdfast.store.postgres import commits
from holdfast.store.postgres.arrays import floats, ints, texts
from holdfast.store.postgres.commits import NEVER, Parts

_ARRAY: dict[str, Callable[[Any], bytes]] = {"bigint": ints, "float8": floats, "text": texts}
_columns_of = attrgetter("seq", "kind", "fence", "at", "cursor", "check", "body")
_NO_ENTRY = (None,) * 7

Placed = tuple[int, Commit]
"""A commit with its place in the batch."""


class Statement(NamedTuple):
    """What writes some commits of a batch."""

    commits: list[Placed]
    text: str
    values: list[Any]
    makes_runs: bool


def is_step(commit: Commit) -> bool:
    """Whether it is the usual commit: one entry and nothing else."""
    usual = len(commit.entries) == 1 and commit.heard is None
    return usual and not (commit.create or commit.change or commit.take or commit.rebase)


def nobodys() -> list[Statement]:
    """The statements of most batches, with no commit in them: new runs, steps, and runs that end."""
    new = [*_none(commits.NEW_RUN), *_none(commits.NEW_ENTRY), Int8(0)]
    others = [
        Statement([], commits.commit_statement(parts), [*_none(commits.columns(parts)), Int8(0)], makes_runs=False)
        for parts in (Parts(), Parts(change=commits.ENDING, heard=True))
    ]
    return [Statement([], commits.CREATE_RUNS, new, makes_runs=True), *others]


def _none(columns: commits.Columns) -> list[bytes]:
    return [_ARRAY[kind](()) for _, kind in columns]


def statements(some: list[Placed]) -> Iterator[Statement]:
    """What writes these commits of different runs."""
    new, others = list[Placed](), list[Placed]()
    for placed in some:
        (new if _is_viable(placed[1]) else others).append(placed)
    if new:
        yield _creation(new)
    if others:
        yield _change(others)


def _creation(new: list[Placed]) -> Statement:
    heads, given = [], list[tuple[Any, ...]]()
    for _, commit in new:
        assert commit.create is not None
        entries = _kept(commit)
        last = entries[-1]
        head = commit.create if commit.change is None else replace(commit.create, **commit.change.fields())
        heads.append((*stored_of(head), last.seq, last.cursor, last.at))
        given += ((commit.run, *_columns_of(entry)) for entry in entries)
    bound = [*_bound(commits.NEW_RUN, heads), *_bound(commits.NEW_ENTRY, given)]
    return Statement(new, commits.CREATE_RUNS, [*bound, Int8(len(new))], makes_runs=True)


def _bound(columns: commits.Columns, given: list[tuple[Any, ...]]) -> list[bytes]:
    """Each column of these rows as it goes to the server."""
    return [_ARRAY[kind](values) for (_, kind), values in zip(columns, zip(*given, strict=True), strict=True)]


def _is_viable(commit: Commit) -> bool:
    """Whether it makes a run, if the id is free."""
    new = commit.create
    return new is not None and (new.owner, new.fence) == (commit.owner, commit.fence) and _after(commit) == 0


def _after(commit: Commit) -> int | None:
    """The seq that the run must have come to; None where that does not matter, NEVER where nothing would do."""
    entries = commit.entries
    if not entries:
        return None if commit.create is None else NEVER
    if len(entries) > 1 and any(after.seq != before.seq + 1 for before, after in pairwise(entries)):
        return NEVER
    if commit.rebase is not None and commit.create is not None and not 1 <= commit.rebase.seq <= entries[-1].seq:
        return NEVER
    if commit.create is not None and entries[0].seq != 1:
        return NEVER
    return entries[0].seq - 1


def _change(some: list[Placed]) -> Statement:
    parts, given = Parts(), list[tuple[Any, ...]]()
    if all(is_step(commit) for _, commit in some):
        for place, commit in some:
            (entry,) = commit.entries
            given.append((place, commit.run, commit.owner, commit.fence, entry.seq - 1, *_columns_of(entry)))
    else:
        changes = [{} if commit.change is None else commit.change.fields() for _, commit in some]
        change = _changed(changes)
        parts = Parts(
            writes=not all(is_empty(commit) for _, commit in some),
            change=change,
            take=any(commit.take for _, commit in some),
            rebase=any(commit.rebase is not None for _, commit in some),
            heard=bool(change) or any(commit.heard is not None for _, commit in some),
        )
        for (place, commit), fields in zip(some, changes, strict=True):
            given += _rows(place, commit, fields, parts)
    bound = _bound(commits.columns(parts), given)
    return Statement(some, commits.commit_statement(parts), [*bound, Int8(len(some))], makes_runs=False)


def _rows(place: int, commit: Commit, change: dict[str, Any], parts: Parts) -> Iterator[tuple[Any, ...]]:
    """The rows of `given` for one commit."""
    who = (commit.run, commit.owner, commit.fence, _after(commit))
    more = _more(commit, change, parts)
    entries = _kept(commit)
    for entry in entries[:-1]:
        yield (None, *who, *_columns_of(entry), *more)
    yield (place, *who, *(_columns_of(entries[-1]) if entries else _NO_ENTRY), *more)


def _changed(changes: list[dict[str, Any]]) -> tuple[str, ...]:
    """What is changed of heads, as one of few, so that there are few statements."""
    changed = set().union(*changes)
    if not changed:
        return ()
    return commits.ENDING if changed.issubset(commits.ENDING) else commits.ANYTHING


def _kept(commit: Commit) -> Sequence[Entry]:
    """The entries of a commit without those that it drops itself."""
    entries, rebase = commit.entries, commit.rebase
    if rebase is None or not entries or rebase.seq > entries[-1].seq:
        return entries
    return [rebase if entry.seq == rebase.seq else entry for entry in entries if entry.seq >= rebase.seq]


def _more(commit: Commit, change: dict[str, Any], parts: Parts) -> tuple[Any, ...]:
    """The columns of what a commit has besides entries."""
    more: list[Any] = []
    if parts.change:
        more = [_bits(*change), *map(change.get, parts.change)]
    if parts.take:
        more.append(f"{{{','.join(map(str, commit.take))}}}" if commit.take else None)
    if parts.rebase:
        more += _rebase(commit.rebase, commit.entries)
    if parts.heard:
        more.append(commit.heard)
    return tuple(more)


@cache
def _bits(*names: str) -> int:
    return sum(map(commits.BIT.__getitem__, names))


def _rebase(rebase: Entry | None, entries: tuple[Entry, ...]) -> tuple[Any, ...]:
    if rebase is None:
        return (None,) * 8
    inside = 1 if entries and entries[0].seq <= rebase.seq <= entries[-1].seq else None
    return (rebase.seq, inside, rebase.kind, rebase.fence, rebase.at, rebase.cursor, rebase.check, rebase.body)
