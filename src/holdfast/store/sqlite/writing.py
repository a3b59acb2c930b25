"""How a batch of commits becomes one transaction.

Nearly always every commit of a batch is accepted. So it is first written as if that were so, with one
call for all runs and statements that write nothing where a fence, an owner or a seq does not fit; the
number of rows written then tells whether all did. If not, it is taken back and each commit is looked at
by itself. Usual steps, one or many, are one statement, which is its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import apsw

from holdfast.faults import fault
from holdfast.model import Commit, Entry, Mail, Refusal, Reply
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.batches import Batch, entry_values, updates_of
from holdfast.store.sqlite.pages import Room

_ACCEPTED = Reply()
_ROUND = 32
_MOST_VALUES = 2816  # bound by one statement: the larger it is, the longer it takes to make ready


def finish(connection: apsw.Connection) -> None:
    """Commit the transaction under way."""
    fault("commit.before")
    connection.execute("commit")
    fault("commit.after")


def write_batch(
    connection: apsw.Connection,
    room: Room,
    batch: Batch,
    entering: Callable[[], object] = bool,
    last: Callable[[apsw.Connection], object] = bool,
) -> list[Reply]:
    """Every commit of the batch in one transaction; a refused one has written nothing.

    `entering` is called when only SQLite is at work from then on, or for most of what is left. What `last` writes goes
    with what is written of a batch that was not made ready.
    """
    commits = batch.commits
    refusals: list[Refusal | None]
    if batch.steps and len(commits) == 1:
        mail = _write_step(connection, batch)
        if mail == 0:
            return [_ACCEPTED]
        refusals = [None] if mail else [_refusal(connection, commits[0])]
    elif batch.steps:
        refusals = _write_steps(connection, batch, entering)
    else:
        connection.execute("begin immediate")
        refusals = [None] * len(commits)
        written = batch.plain and _write_all(connection, batch, entering)
        if not written:
            before = connection.total_changes()
            refusals = [_write_one(connection, room, commit) for commit in commits]
            written = connection.total_changes() > before
        if written:
            last(connection)
            finish(connection)
        else:
            connection.execute("rollback")  # all were refused, or only asked
    if connection.execute(sql.ANY_MAIL).get is None:
        return [_ACCEPTED if refusal is None else Reply(refusal) for refusal in refusals]
    return [
        Reply(refusal) if refusal else Reply(None, _mail_of(connection, commit.run))
        for commit, refusal in zip(commits, refusals, strict=True)
    ]


def _write_step(connection: apsw.Connection, batch: Batch) -> int | None:
    """Whether there is any mail in the store; None when the step was refused."""
    values = [*batch.entries, batch.owner]
    fault("commit.before")
    mail: Any
    if len(values) == sql.APPEND_WIDTH + 1:
        mail = connection.execute(sql.APPEND_STEP, values).get
    else:
        mail = connection.execute(sql.APPEND_SPLIT_STEP, values).get
        mail = mail and mail[0]  # each of the two rows says it
    fault("commit.after")
    return None if mail is None else int(mail)


def _write_steps(connection: apsw.Connection, batch: Batch, entering: Callable[[], object]) -> list[Refusal | None]:
    """Write the steps of many runs with one statement, which is their transaction."""
    commits, values = batch.commits, batch.entries
    expected = len(values) // sql.APPEND_WIDTH
    rows = _round_up(values, sql.APPEND_WIDTH)
    values.append(batch.owner)
    fault("commit.before")
    entering()
    # Of one row alone nothing is written when its place is taken.
    connection.execute((sql.append_steps if expected > len(commits) else sql.append)(rows), values)
    fault("commit.after")
    written = connection.changes()
    if written == expected:
        return [None] * len(commits)
    before = connection.last_insert_rowid() - written  # what one statement writes lies together
    return [
        _refused_since(connection, commit, before) if written else _refusal(connection, commit) for commit in commits
    ]


def _refused_since(connection: apsw.Connection, commit: Commit, before: int) -> Refusal | None:
    """Why a step is not among the entries that came behind that place; None when it is. Nobody else has its fence."""
    step = (commit.run, commit.entries[0].seq, commit.fence, before)
    return None if connection.execute(sql.WRITTEN_SINCE, step).get else _refusal(connection, commit)


def _write_all(connection: apsw.Connection, batch: Batch, entering: Callable[[], object]) -> bool:
    """Write the batch as if nothing were refused; False, and nothing written, when something is."""
    owner = batch.owner
    expected = len(batch.created) // sql.CREATE_WIDTH + len(batch.entries) // sql.APPEND_WIDTH
    before = connection.total_changes()
    entering()
    _execute(connection, sql.create_runs, sql.CREATE_WIDTH, batch.created)
    _execute(connection, sql.append, sql.APPEND_WIDTH, batch.entries, owner)
    for names, values in batch.updates.items():
        width = sql.update_width(names)
        expected += len(values) // width
        _execute(connection, partial(sql.update_runs, names), width, values, owner)
    if connection.total_changes() - before == expected:
        return True
    connection.execute("rollback; begin immediate")
    return False


def _execute(
    connection: apsw.Connection, text: Callable[[int], str], width: int, values: list[Any], *last: Any
) -> None:
    """Execute the statement for all these rows of so many values, with what is bound once behind them."""
    most = _MOST_VALUES // width // _ROUND * _ROUND * width
    for at in range(0, len(values), most):
        some = values[at : at + most]
        rows = _round_up(some, width)
        some += last
        connection.execute(text(rows), some)


def _round_up(values: list[Any], width: int) -> int:
    """Add rows of nulls up to one of a few numbers, which it gives: a statement for every number could not be kept."""
    count = len(values) // width
    more = (1 << (count - 1).bit_length()) - count if count <= _ROUND else -count % _ROUND
    values += (None,) * (more * width)
    return count + more


def _write_one(connection: apsw.Connection, room: Room, commit: Commit) -> Refusal | None:
    """Checks first, so that a refusal leaves nothing to undo."""
    refusal = _refusal(connection, commit)
    if refusal is not None:
        return refusal
    if commit.create is not None:
        connection.execute(sql.create_runs(1), sql.head_values(commit.create))
    _execute(connection, sql.append, sql.APPEND_WIDTH, entry_values([commit], room), commit.owner)
    n = connection.execute(sql.FIND_RUN, (commit.run,)).get
    for mail in commit.take:
        connection.execute(sql.TAKE_KEYED, (mail, n))
        connection.execute(sql.TAKE_PLAIN, (mail, n))
    if commit.rebase is not None:
        connection.execute(sql.REPLACE_ENTRY, (n, commit.rebase.seq, *_columns(commit.rebase)))
        connection.execute(sql.DROP_BEFORE, (n, commit.rebase.seq))
    for names, values in updates_of([commit]).items():
        connection.execute(sql.update_runs(names, 1), [*values, commit.owner])
    return None


def _refusal(connection: apsw.Connection, commit: Commit) -> Refusal | None:
    new, run = commit.create, (commit.run,)
    if new is not None:
        if connection.execute(sql.FIND_RUN, run).get is not None:
            return Refusal.EXISTS
        if (new.owner, new.fence) != (commit.owner, commit.fence):
            return Refusal.STALE
        last = 0
    else:
        if connection.execute(sql.FIND_OWNED, (*run, commit.owner, commit.fence)).get is None:
            return Refusal.STALE
        last = connection.execute(sql.LAST_SEQ, run).get
    seqs = [last, *(entry.seq for entry in commit.entries)]
    if any(after != before + 1 for before, after in pairwise(seqs)) or seqs == [0]:
        return Refusal.GAP
    rebase = None if commit.rebase is None else commit.rebase.seq
    if rebase and rebase not in seqs[1:] and connection.execute(sql.HAS_ENTRY, (commit.run, rebase)).get is None:
        return Refusal.GAP
    if commit.heard is not None and connection.execute(sql.HAS_UNHEARD, (commit.run, commit.heard)).get:
        return Refusal.UNHEARD
    return None


def _columns(entry: Entry) -> tuple[Any, ...]:
    return entry.kind, entry.fence, entry.at, entry.cursor.decode(), entry.check, entry.body.decode()


def mail_of_number(connection: apsw.Connection, n: int) -> tuple[Mail, ...]:
    """The mail that waits for the run of that internal number."""
    return tuple(sql.mail_from(row) for row in connection.execute(sql.READ_MAIL, (n,)))


def _mail_of(connection: apsw.Connection, run: str) -> tuple[Mail, ...]:
    n = connection.execute(sql.FIND_RUN, (run,)).get
    return () if n is None else mail_of_number(connection, n)
