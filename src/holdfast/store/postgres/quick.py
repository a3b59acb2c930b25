"""A usual step by itself, which is most of what a lone run writes, on the way that costs least.

The driver's cursors find out anew for each statement what its values are, what it is called on the server and what
its rows look like. All of that is known here, so what is left is to send the values and to look at the answer.
"""

from __future__ import annotations

from struct import Struct

from psycopg import AsyncConnection, pq
from psycopg.abc import PQGen
from psycopg.generators import execute

from holdfast.model import Commit, Entry, Kind
from holdfast.store.postgres.commits import STEP
from holdfast.store.postgres.trouble import error_of

_NAME = b"holdfast_step"
_TEXT, _INT, _FLOAT = (25, pq.Format.TEXT), (20, pq.Format.BINARY), (701, pq.Format.BINARY)
_KINDS = (_TEXT, _TEXT, _INT, _INT, _TEXT, _INT, _FLOAT, _TEXT, _TEXT, _TEXT)
_OIDS, _FORMATS = [oid for oid, _ in _KINDS], [form for _, form in _KINDS]
_int, _float = Struct("!q").pack, Struct("!d").pack


_NOBODYS = Commit(run="", owner="", fence=0, entries=(Entry(0, Kind.CHECKPOINT, 0, 0.0, b"", b"", ""),))


async def prepare_step(connection: AsyncConnection) -> None:
    """Make the statement known to the server, for as long as this connection lives, and have it planned."""
    async with connection.lock:
        connection.pgconn.send_prepare(_NAME, STEP.encode(), _OIDS)
        await connection.wait(_result(connection.pgconn))
    await write_step(connection, _NOBODYS)  # which is refused


async def write_step(connection: AsyncConnection, commit: Commit) -> bool | None:
    """Whether there is mail for the run of this usual step; None when it was refused, and nothing written."""
    (e,) = commit.entries
    values: list[bytes | None] = [
        *(commit.run.encode(), commit.owner.encode(), _int(commit.fence), _int(e.seq), e.kind.encode()),
        *(_int(e.fence), _float(e.at), e.cursor, e.check.encode(), e.body),
    ]
    async with connection.lock:
        connection.pgconn.send_query_prepared(_NAME, values, _FORMATS, pq.Format.TEXT)
        result = await connection.wait(_result(connection.pgconn))
    return result.get_value(0, 0) == b"t" if result.ntuples else None


def _result(connection: pq.abc.PGconn) -> PQGen[pq.abc.PGresult]:
    """What the server answers to the one statement that was sent. Raises what it has refused."""
    result: pq.abc.PGresult
    (result,) = yield from execute(connection)
    if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        raise error_of(result)
    return result
