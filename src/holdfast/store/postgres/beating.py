"""The heartbeat: a connection of its own, used by whatever thread beats, that never waits longer than it may.

A server that hangs neither answers nor closes the connection, so the time is kept here and not left to the server.
"""

from __future__ import annotations

import os
import select
import threading
import time

import psycopg
from psycopg import pq

from holdfast.errors import StoreUnavailableError
from holdfast.model import Owner
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.trouble import error_of, not_reached, told

_SHARE = 1 / 3  # of the lease: that long a beat may take
_TO_BE_READY = 1.0  # seconds
_inherited: list[object] = []

# An owner that died an hour ago and owns nothing leaves no trace. Rows that somebody else is about to remove are left
# to them, so that no two beats wait for each other.
_BEAT = """
    with forgotten as (
      delete from {schema}.owners o where o.id in (
        select d.id from {schema}.owners d where d.lease_until < now() - interval '1 hour' and d.id <> $1
          and not exists (select 1 from {schema}.runs r where r.owner = d.id) for update skip locked
      )
    )
    insert into {schema}.owners (id, name, info, beat_at, lease_until)
    values ($1, $2, $3, now(), now() + make_interval(secs => $4::float8))
    on conflict (id) do update
    set name = excluded.name, info = excluded.info, beat_at = excluded.beat_at, lease_until = excluded.lease_until
"""


class Heart:
    """Says that owners live. Safe to use from any thread."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._text = _BEAT.format(schema=address.quoted_schema).encode()
        self._guard = threading.Lock()
        self._connection: psycopg.Connection | None = None
        self._pid = os.getpid()

    def be_ready(self) -> None:
        """Connect, if the server lets us, and have it plan a beat: the first one is waited for, and comes sooner so."""
        with self._guard:
            try:
                self._execute(b"explain " + self._text, [b"", b"", b"", b"0"], time.monotonic() + _TO_BE_READY)
            except (StoreUnavailableError, psycopg.Error):
                self._drop()  # the first beat tries again, and tells what is wrong

    def beat(self, owner: Owner, lease: float) -> None:
        """Say that `owner` lives for `lease` seconds from now on; gives up with StoreUnavailableError long before."""
        deadline = time.monotonic() + lease * _SHARE
        if not self._guard.acquire(timeout=lease * _SHARE):
            raise self._too_late()
        try:
            self._beat(owner, lease, deadline)
        except psycopg.Error as error:
            self._drop()
            raise told(error, self._address, otherwise="The next heartbeat tries again") from error
        except BaseException:
            self._drop()
            raise
        finally:
            self._guard.release()

    def _beat(self, owner: Owner, lease: float, deadline: float) -> None:
        used = self._connection is not None
        values: list[bytes | None] = [owner.id.encode(), owner.name.encode(), owner.info, repr(float(lease)).encode()]
        try:
            self._execute(self._text, values, deadline)
        except psycopg.OperationalError:
            if not used:
                raise
            # Lost since the last beat, by a restart of the server perhaps. Beating twice is no harm.
            self._drop()
            self._execute(self._text, values, deadline)

    def _execute(self, text: bytes, values: list[bytes | None], deadline: float) -> None:
        connection = self._connected(deadline).pgconn
        connection.send_query_params(text, values)
        error: psycopg.Error | None = None
        while True:
            while connection.is_busy():
                self._wait(connection.socket, deadline)
                connection.consume_input()
            result = connection.get_result()
            if result is None:
                break
            if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
                error = error_of(result)
        if error is not None:
            raise error

    def _wait(self, descriptor: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise self._too_late()

    def _connected(self, deadline: float) -> psycopg.Connection:
        if self._pid != os.getpid():
            _inherited.append(self._connection)
            self._connection, self._pid = None, os.getpid()
        if self._connection is None or self._connection.closed:
            seconds = max(2, int(deadline - time.monotonic()))  # libpq takes 2 for less
            try:
                self._connection = psycopg.connect(
                    self._address.conninfo_with(connect_timeout=seconds), autocommit=True
                )
            except psycopg.Error as error:
                raise not_reached(error, self._address) from error
        return self._connection

    def _too_late(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._address.shown}: the server did not answer the heartbeat in time. The next one tries again"
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            connection.close()

    def close(self) -> None:
        """Let go of the connection; the next beat makes another one."""
        with self._guard:
            self._drop()
