"""The tables, and how an older file gets them.

    runs     one small mutable row per run; `n` is never used again, so a late writer cannot
             hit another run
    entries  the log, in the order in which it came, so that what many runs write at once lies
             together; id = n << 32 | seq finds the entries of a run (a rowid table stores 2 KB
             entries in half the bytes of WITHOUT ROWID); `body` comes last so that lists need
             not read through it. A row without an id holds the beginning of the body of the
             entry right behind it, which is `begun` there to fill a page (see pages)
    inbox    mail; keyed mail stays as taken so that its key is never accepted again
    owners   who said when to be alive for how long

`user_version` is the schema's version. Each migration is one transaction together with its new
version number: dying inside one leaves the old version, and the next open does it again.
"""

from __future__ import annotations

import apsw

from holdfast.errors import StoreDamagedError, StoreVersionError, UsageError
from holdfast.faults import fault

APPLICATION_ID = 0x486F6C64  # "Hold"

MIGRATIONS: list[str] = [
    """
    create table runs (
        n integer primary key autoincrement,
        id text not null unique,
        flow text not null,
        status text not null,
        owner text,
        fence integer not null,
        attempt integer not null,
        base integer not null,
        floor integer not null,
        wake_at real,
        expires_at real,
        parent text,
        queue text not null,
        priority integer not null,
        key text,
        metadata text not null,
        info text not null,
        error text,
        waiting_for text,
        created_at real not null,
        started_at real,
        ended_at real
    );
    create index runs_by_age on runs (created_at, id);
    create index runs_unfinished on runs (owner, queue, priority desc, created_at, id)
        where status in ('pending', 'running', 'waiting', 'paused', 'interrupted');
    create index runs_expiring on runs (expires_at) where expires_at is not null;
    create index runs_by_parent on runs (parent) where parent is not null;
    create table entries (
        place integer primary key,
        id integer,
        kind text not null,
        fence integer not null,
        at real not null,
        cursor text not null,
        "check" text not null,
        begun integer not null,
        body text not null
    );
    create unique index entries_by_id on entries (id) where id is not null;
    create table inbox (
        id integer primary key autoincrement,
        n integer not null,
        kind text not null,
        body text not null,
        key text,
        at real not null,
        taken integer not null default 0
    );
    create unique index inbox_by_key on inbox (n, key) where key is not null;
    create index inbox_waiting on inbox (n) where taken = 0;
    create table owners (
        id text primary key,
        name text not null,
        beat_at real not null,
        lease_until real not null,
        info text not null
    ) without rowid;
    """,
]


# One statement, which sees the file as it was at one moment: somebody may be making it right now.
_LOOK = """
    select (select user_version from pragma_user_version), (select application_id from pragma_application_id),
      exists (select 1 from sqlite_schema), (select name from sqlite_schema where type in ('trigger', 'view') limit 1)
"""


def version(connection: apsw.Connection) -> int:
    """The schema version of the open file. Raises for a newer one and for another program's file."""
    found, application, used, hostile = connection.execute(_LOOK).get
    foreign = application != APPLICATION_ID
    if found > len(MIGRATIONS):
        raise StoreVersionError(found, len(MIGRATIONS))
    if foreign and (found or used):
        raise UsageError(
            f"{connection.filename} is a database of another program, and is left as it is: name another file"
        )
    if hostile:
        raise StoreDamagedError(None, None, f"its schema has been changed ({hostile!r} is not ours)")
    return int(found)


def migrate(connection: apsw.Connection) -> None:
    """Bring the file to the newest version. Several processes may do this at once."""
    while version(connection) < len(MIGRATIONS):
        connection.execute("begin immediate")
        try:
            # Another process may have been quicker while this one waited for the lock.
            at = version(connection)
            if at < len(MIGRATIONS):
                connection.execute(MIGRATIONS[at])
                fault("migration.inside")
                connection.execute(f"pragma application_id = {APPLICATION_ID}; pragma user_version = {at + 1}")
            fault("migration.before")
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:  # a full disk has taken it back already
                connection.execute("rollback")
            raise
        fault("migration.after")
