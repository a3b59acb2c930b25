"""What workers hold stays bounded, however often they lose their server: connections, descriptors, leases, mail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.store.postgres.connections import POOL_SIZE

from .fleet_watch import Watch
from .fleet_worker import LEASE, name_of
from .nursery import Child

CONNECTIONS = POOL_SIZE + 3
"""Of one worker, at most: the pool, one for commits, one that listens, one for the heartbeat."""
DESCRIPTORS = CONNECTIONS + 3
"""More than when it began: those, and what the event loop has."""
_SETTLED = 10.0
"""Seconds for the server to end what the dead have left to it."""

_ACTIVITY = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
_NONE_OF = {
    "transactions that nobody ends": f"select pid, state, query {_ACTIVITY} and state like 'idle in transaction%%'",
    "locks that nobody lets go": "select pid, objid from pg_locks where locktype = 'advisory'",
    "temporary files": "select name from pg_ls_tmpdir()",
    "runs that have ended and an owner": "select id, owner from {s}.runs where owner is not null",
    "entries of no run": "select n, seq from {s}.entries where n not in (select n from {s}.runs)",
    "mail for no run": "select n, run from {s}.inbox where n not in (select n from {s}.runs)",
}
_WAL = "select sum(size)::float8, pg_size_bytes(current_setting('max_wal_size'))::float8 from pg_ls_waldir()"
# Owners that died an hour ago; the trigger that tells of late heartbeats is not meant.
_AGE = """
    alter table {s}.owners disable trigger torture_beat;
    update {s}.owners set lease_until = lease_until - interval '2 hours' where name <> all (%s);
    alter table {s}.owners enable trigger torture_beat
"""


def check_bounds(watch: Watch, workers: Sequence[Child]) -> None:
    """At the end, with the workers alive and idle. Raises AssertionError."""
    for worker in workers:
        most = int(worker.wait_for("begun")["descriptors"]) + DESCRIPTORS
        _eventually(f"more than {most} descriptors of a worker", partial(_descriptors, worker, most))
    _eventually(f"more than {CONNECTIONS} connections of each worker", partial(_connections, watch, len(workers)))
    for what, text in _NONE_OF.items():
        _eventually(what, partial(watch.rows, text))
    ((size, most),) = watch.rows(_WAL)
    assert size <= 2 * most, f"the log of the server has {size} bytes"
    _check_leases(watch, [name_of(worker.pid) for worker in workers])


def _descriptors(worker: Child, most: int) -> list[str]:
    found = os.listdir(f"/proc/{worker.pid}/fd")
    return found if len(found) > most else []


def _connections(watch: Watch, workers: int) -> list[Any]:
    found = watch.rows(f"select pid, state, query {_ACTIVITY}")
    return found if len(found) > workers * CONNECTIONS else []


def _check_leases(watch: Watch, living: list[str]) -> None:
    """Who died an hour ago and owns nothing is forgotten by whoever lives, at its next heartbeat."""
    for text in _AGE.split(";"):
        watch.rows(text, (living,) if "%s" in text else ())
    dead = "select id, name from {s}.owners where name <> all (%s)"
    _eventually("leases of the dead", partial(watch.rows, dead, (living,)), within=_SETTLED + LEASE)


def _eventually(what: str, found: Callable[[], list[Any]], within: float = _SETTLED) -> None:
    deadline = time.monotonic() + within
    while left := found():
        assert time.monotonic() < deadline, f"there are still {what}: {left[:5]}"
        time.sleep(0.02)
