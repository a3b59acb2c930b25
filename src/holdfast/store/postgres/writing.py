"""How a batch of commits becomes one transaction and one round trip.

A usual step by itself is one small statement; new runs are made by one statement, and all else is done by another. A
batch that needs both, or has several commits of one run, sends them in a pipeline, which the server takes as one
transaction. Locks are taken in one order by everybody: new ids by their bytes, then rows by theirs.

Where an entry stands already in the place of a run's next one, the run is damaged and the server takes all of the
batch back. Then each commit is written by itself, so that the other runs go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.errors import DeadlockDetected, InsufficientPrivilege, SerializationFailure, UniqueViolation

from holdfast.errors import StoreDamagedError
from holdfast.faults import fault
from holdfast.model import Commit, Mail, Refusal, Reply
from holdfast.store.postgres import commits, rows
from holdfast.store.postgres.quick import prepare_step, write_step
from holdfast.store.postgres.schema import NUMBERS
from holdfast.store.postgres.statements import Placed, Statement, is_step, nobodys, statements
from holdfast.store.postgres.trouble import said

_ACCEPTED = Reply()
_REFUSALS = {commits.STALE: Refusal.STALE, commits.GAP: Refusal.GAP, commits.UNHEARD: Refusal.UNHEARD}
_TRIES = 5
_Replies = list[Reply | None]
_MAIL = f"""
    select {rows.MAIL_COLUMNS} from inbox i
    where i.n = (select r.n from runs r where r.id = $1) and not i.taken order by i.id
"""


# A restore of the data alone, or logical replication, leaves the sequence behind. Several may do this at once: should
# one set it back to a number that another has just got, that is found out in the same way.
_CATCH_UP = """
    select setval(s.name, greatest((select max(n) from runs), pg_sequence_last_value(s.name)))
    from (select pg_get_serial_sequence('runs', 'n')::regclass as name) s
"""


async def prepare(connection: AsyncConnection) -> None:
    """Let the server know the usual statements and plan them, so that no commit on this connection waits for it."""
    await prepare_step(connection)
    for statement in nobodys():
        with suppress(InsufficientPrivilege):  # who may not make runs can still go on with them
            await _executed(connection, [statement])


async def write_batch(connection: AsyncConnection, batch: Sequence[Commit]) -> list[Reply]:
    """Every commit of the batch in one transaction; a refused one has written nothing.

    A commit of a damaged run is refused. Raises StoreDamagedError when there are no others.
    """
    if not batch:
        return []
    try:
        return await _write_again(connection, batch)
    except UniqueViolation as error:
        if len({commit.run for commit in batch}) == 1:
            raise StoreDamagedError(batch[0].run, None, f"its next entry has no room: {said(error)}") from error
    return [await _write_by_itself(connection, commit) for commit in batch]


async def _write_by_itself(connection: AsyncConnection, commit: Commit) -> Reply:
    try:
        return (await _write_again(connection, [commit]))[0]
    except UniqueViolation:
        # The other runs go on, and whoever reads this one is told.
        return Reply(Refusal.EXISTS if commit.create else Refusal.STALE)


async def _write_again(connection: AsyncConnection, batch: Sequence[Commit]) -> list[Reply]:
    for _ in range(_TRIES):
        try:
            return await _write(connection, batch)
        except (DeadlockDetected, SerializationFailure):
            continue  # the server has taken all of it back
        except UniqueViolation as error:
            if error.diag.constraint_name != NUMBERS:
                raise
            await connection.execute(_CATCH_UP)
    return await _write(connection, batch)


async def _write(connection: AsyncConnection, batch: Sequence[Commit]) -> list[Reply]:
    fault("commit.before")
    if len(batch) == 1 and is_step(batch[0]):
        mailed = await write_step(connection, batch[0])
        if mailed is not None:
            fault("commit.after")
            return [Reply(None, await _mail_of(connection, batch[0].run)) if mailed else _ACCEPTED]
        # Refused, and nothing was written. The same by the other way tells why.
    needed = [statement for some in _rounds(batch) for statement in statements(some)]
    replies: _Replies = [None] * len(batch)
    for statement, cursor in zip(needed, await _executed(connection, needed), strict=True):
        told = await cursor.fetchall()
        (_judge_new if statement.makes_runs else _judge)(replies, statement.commits, told)
    fault("commit.after")
    return [_ACCEPTED if reply is None else reply for reply in replies]


async def _mail_of(connection: AsyncConnection, run: str) -> tuple[Mail, ...]:
    found = await connection.execute(_MAIL, (run,), prepare=True, binary=True)
    return tuple(map(rows.mail_from, await found.fetchall()))


def _judge(replies: _Replies, some: list[Placed], told: list[tuple[Any, ...]]) -> None:
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


def _judge_new(replies: _Replies, some: list[Placed], told: list[tuple[Any, ...]]) -> None:
    made = told[0][0]
    if made is not None:
        for place, commit in some:
            if commit.run not in made:
                replies[place] = Reply(Refusal.EXISTS)


def _rounds(batch: Sequence[Commit]) -> list[list[Placed]]:
    """The commits by run; the second one of a run is in the second round, and so on.

    All runs are in the first round, which therefore takes all locks.
    """
    rounds: list[list[Placed]] = []
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


def _run_of(placed: Placed) -> str:
    return placed[1].run


async def _executed(connection: AsyncConnection, needed: list[Statement]) -> list[AsyncCursor[Any]]:
    if len(needed) == 1:
        return [await connection.execute(needed[0].text, needed[0].values, prepare=True, binary=True)]
    async with connection.pipeline():
        return [await connection.execute(one.text, one.values, prepare=True, binary=True) for one in needed]


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
