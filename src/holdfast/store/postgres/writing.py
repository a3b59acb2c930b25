"""How a batch of commits becomes one transaction and one round trip.

A usual step by itself is one small statement, any other batch a larger one. Where it makes new runs, or has several
commits of one run, further statements go with it in a pipeline, which the server takes as one transaction. Locks are
taken in one order by everybody: new ids by their bytes, then rows by theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.types.numeric import Int8

from holdfast.core.record import is_empty
from holdfast.faults import fault
from holdfast.model import Commit, Entry, Mail, Refusal, Reply
from holdfast.store.postgres import commits, rows
from holdfast.store.postgres.arrays import floats, ints, texts
from holdfast.store.postgres.commits import NEVER, Parts
from holdfast.store.postgres.quick import write_step

_ACCEPTED = Reply()
_ARRAY: dict[str, Callable[[Any], bytes]] = {"bigint": ints, "float8": floats, "text": texts}
_REFUSALS = {commits.STALE: Refusal.STALE, commits.GAP: Refusal.GAP}
_BIT = {name: 1 << bit for bit, (name, _) in enumerate(commits.CHANGEABLE)}
_Placed = tuple[int, Commit]
_MAIL = f"""
    select {rows.MAIL_COLUMNS} from inbox i
    where i.n = (select r.n from runs r where r.id = $1) and not i.taken order by i.id
"""


async def write_batch(connection: AsyncConnection, batch: Sequence[Commit]) -> list[Reply]:
    """Every commit of the batch in one transaction; a refused one has written nothing."""
    if not batch:
        return []
    fault("commit.before")
    if len(batch) == 1 and _is_step(batch[0]):
        mailed = await write_step(connection, batch[0])
        if mailed is not None:
            fault("commit.after")
            return [Reply(None, await _mail_of(connection, batch[0].run)) if mailed else _ACCEPTED]
        # Refused, and nothing was written. The same by the other way tells why.
    rounds = _rounds(batch)
    if len(rounds) == 1 and not any(commit.create for _, commit in rounds[0]):
        cursors = [await connection.execute(*_statement(rounds[0]), prepare=True, binary=True)]
    else:
        cursors = await _pipelined(connection, rounds)
    replies: list[Reply | None] = [None] * len(batch)
    for cursor, some in zip(cursors, rounds, strict=True):
        _judge(replies, some, await cursor.fetchall())
    fault("commit.after")
    return [_ACCEPTED if reply is None else reply for reply in replies]


def _is_step(commit: Commit) -> bool:
    """Whether it is the usual commit: one entry and nothing else."""
    return len(commit.entries) == 1 and not (commit.create or commit.change or commit.take or commit.rebase)


async def _mail_of(connection: AsyncConnection, run: str) -> tuple[Mail, ...]:
    found = await connection.execute(_MAIL, (run,), prepare=True, binary=True)
    return tuple(map(rows.mail_from, await found.fetchall()))


def _judge(replies: list[Reply | None], some: list[_Placed], told: list[tuple[Any, ...]]) -> None:
    """Put down the replies of these commits that are more than an acceptance."""
    if told[0][0] == len(some) and told[0][1] is None:
        return
    found: dict[int, tuple[int, list[Mail]]] = {}
    for _, place, refused, *mail in told:
        _, waiting = found.setdefault(place, (refused, []))
        if mail[-1] is not None:
            waiting.append(rows.mail_from(tuple(mail)))
    all_told = told[0][0] != len(some)
    for place, commit in some:
        if all_told or place in found:
            replies[place] = _reply(commit, found.get(place))


def _rounds(batch: Sequence[Commit]) -> list[list[_Placed]]:
    """The commits by run; the second one of a run is in the second round, and so on.

    All runs are in the first round, which therefore takes all locks.
    """
    rounds: list[list[_Placed]] = []
    seen: dict[str, int] = {}
    for place, commit in enumerate(batch):
        turn = seen.get(commit.run, 0)
        seen[commit.run] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append((place, commit))
    for some in rounds:
        some.sort(key=_run_of)
    return rounds


def _run_of(placed: _Placed) -> str:
    return placed[1].run


async def _pipelined(connection: AsyncConnection, rounds: list[list[_Placed]]) -> list[AsyncCursor[Any]]:
    cursors = []
    async with connection.pipeline():
        for some in rounds:
            new = [commit for _, commit in some if _is_viable(commit)]
            if new:
                await connection.execute(commits.CREATE_RUNS, _new_rows(new), prepare=True)
            cursors.append(await connection.execute(*_statement(some), prepare=True, binary=True))
    return cursors


def _new_rows(new: list[Commit]) -> list[bytes]:
    heads = zip(*(rows.stored_of(commit.create) for commit in new), strict=True)
    return [_ARRAY[commits.kind_of(name)](values) for name, values in zip(rows.STORED, heads, strict=True)]


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


def _statement(some: list[_Placed]) -> tuple[str, list[Any]]:
    """The statement for these commits of different runs, and what it binds."""
    parts = Parts(
        writes=not all(is_empty(commit) for _, commit in some),
        change=any(commit.change is not None for _, commit in some),
        take=any(commit.take for _, commit in some),
        rebase=any(commit.rebase is not None for _, commit in some),
    )
    given: list[tuple[Any, ...]] = []
    for place, commit in some:
        _add_rows(given, place, commit, parts)
    values = zip(*given, strict=True)
    kinds = (kind for _, kind in commits.columns(parts))
    bound: list[Any] = [_ARRAY[kind](column) for kind, column in zip(kinds, values, strict=True)]
    return commits.commit_statement(parts), [*bound, Int8(len(some))]


def _add_rows(given: list[tuple[Any, ...]], place: int, commit: Commit, parts: Parts) -> None:
    """Add the rows of `given` for one commit."""
    after, more = _after(commit), _more(commit, parts)
    who = (commit.run, commit.owner, commit.fence, after)
    entries = commit.entries
    if not entries:
        given.append((place, *who, None, None, None, None, None, None, None, *more))
        return
    rebase, last = commit.rebase, entries[-1]
    for entry in entries:
        seq: int | None = entry.seq
        if rebase is not None:
            if entry.seq == rebase.seq:
                entry = rebase
            elif entry.seq < rebase.seq <= last.seq:
                seq = None  # it would be dropped by the same commit
        at = place if seq == last.seq else None
        given.append((at, *who, seq, entry.kind, entry.fence, entry.at, entry.cursor, entry.check, entry.body, *more))


def _more(commit: Commit, parts: Parts) -> tuple[Any, ...]:
    """The columns of what a commit has besides entries."""
    more: list[Any] = []
    if parts.change:
        changed = commit.change.fields() if commit.change is not None else {}
        more.append(sum(_BIT[name] for name in changed))
        more += [changed.get(name) for name, _ in commits.CHANGEABLE]
    if parts.take:
        more.append(f"{{{','.join(map(str, commit.take))}}}" if commit.take else None)
    if parts.rebase:
        more += _rebase(commit.rebase, commit.entries)
    return tuple(more)


def _rebase(rebase: Entry | None, entries: tuple[Entry, ...]) -> tuple[Any, ...]:
    if rebase is None:
        return (None,) * 8
    inside = 1 if entries and entries[0].seq <= rebase.seq <= entries[-1].seq else None
    return (rebase.seq, inside, rebase.kind, rebase.fence, rebase.at, rebase.cursor, rebase.check, rebase.body)


def _reply(commit: Commit, found: tuple[int, list[Mail]] | None) -> Reply:
    if found is not None and found[0] == commits.ACCEPTED:
        return Reply(None, tuple(sorted(found[1], key=_number))) if found[1] else _ACCEPTED
    if commit.create is None:
        return Reply(Refusal.STALE if found is None else _REFUSALS[found[0]])
    if found is not None:
        return Reply(Refusal.EXISTS)
    stale = (commit.create.owner, commit.create.fence) != (commit.owner, commit.fence)
    return Reply(Refusal.STALE if stale else Refusal.GAP)


def _number(mail: Mail) -> int:
    return mail.id
