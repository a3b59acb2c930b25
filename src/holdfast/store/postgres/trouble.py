"""What the driver and the server complain of, told as errors of ours: one line that says what to do next.

Nothing that the driver says holds a password: libpq names host, port, user and database only.
"""

from __future__ import annotations

import re
from typing import Literal

import psycopg
from psycopg import errors, pq
from psycopg_pool import PoolTimeout

from holdfast.errors import StoreDamagedError, StoreError, StoreUnavailableError
from holdfast.store.postgres.address import Address
from holdfast.store.strangers import is_redis

_GO_ON = "Nothing unacknowledged was counted as done; see to the server, then run it again"
_QUESTION = re.compile(r" Is the server running [^?]*\?")
_READS_ONLY = "It only reads: name the primary server, not a replica, or switch default_transaction_read_only off"
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)
_BROKEN = (errors.DataCorrupted, errors.IndexCorrupted, errors.UniqueViolation, errors.NotNullViolation)

# Before there is a connection, the driver's errors have no codes: they are told by their words. The first counts.
_ADVICE = tuple(
    (re.compile(words), advice)
    for words, advice in (
        (
            "pg_hba.conf",
            "Let an administrator allow this user, database and address in pg_hba.conf; where it says `no encryption`, "
            "sslmode=require in the URL may do",
        ),
        (
            "authentication failed|no password supplied",
            "Check the user and the password in the URL, or set PGPASSWORD or ~/.pgpass",
        ),
        ('database ".*" does not exist', "Create it (createdb DATABASE), or name another one"),
        ('role ".*" does not exist', "Create the user, or name another one in the URL"),
        (
            "too many|remaining connection slots",
            "Raise max_connections of the server, or run fewer processes",
        ),
        ("session is read-only|server is in hot standby mode", "Name the primary server, not a replica"),
        ("the database system is", "Wait until the server is up, then run it again"),
        (
            "SSL was required|SSL error|certificate|private key",
            "Check sslmode and the other ssl options in the URL against what the server is set up for",
        ),
        (r"invalid \w+ value|bad value for|for connection option", "Correct that option in the URL"),
        (
            "configuration parameter|value for parameter|command-line argument|to set parameter",
            "Correct `options` in the URL",
        ),
        (
            "SSL negotiation|expected authentication request",
            "What listens there does not speak as PostgreSQL does: check host and port in the URL",
        ),
    )
)
_OTHERWISE = "Start the server, or check host and port in the URL"


class translated:
    """A context that turns errors of the driver into ours, with the original as the cause."""

    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if isinstance(error, (psycopg.Error, PoolTimeout)):
            raise told(error, self._address) from error
        return False


def told(error: Exception, address: Address, otherwise: str = _GO_ON) -> StoreError:
    """The error of ours for one of the driver's; `otherwise` is what to do where nothing better is known."""
    where, what = address.shown, said(error)
    if isinstance(error, errors.InsufficientPrivilege) and "for sequence" in what:
        return StoreUnavailableError(f"{where}: {what}. {_caught_up(address)}")
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreUnavailableError(f"{where}: {what}. {grants(address, tables_only='for table' in what)}")
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return StoreUnavailableError(f"{where}: {what}. {_READS_ONLY}")
    if isinstance(error, _MISSING):
        return StoreUnavailableError(
            f"{where}: {what}. The tables of the store are not there any more: name another schema, or put them back"
        )
    if isinstance(error, _BROKEN):
        return StoreDamagedError(None, None, f"{where}: {what}")
    return StoreUnavailableError(f"{where}: {what}. {otherwise}")


def not_reached(error: Exception, address: Address) -> StoreUnavailableError:
    """Why there is no connection, and what to do about it."""
    what = said(error)
    advice = next((advice for words, advice in _ADVICE if words.search(what)), _OTHERWISE)
    return StoreUnavailableError(f"{address.shown}: {what}. {advice.replace('DATABASE', address.database)}")


def stranger(answer: bytes, address: Address) -> StoreUnavailableError | None:
    """What is wrong where somebody answers a line of text; PostgreSQL says nothing to that, or begins with E and 0."""
    if not answer or answer.startswith(b"E\0"):
        return None
    what = "is a Redis server" if is_redis(answer) else "does not speak as PostgreSQL does"
    advice = "Write redis://HOST:PORT, or name the port of PostgreSQL" if is_redis(answer) else "Check host and port"
    return StoreUnavailableError(f"{address.shown}: what listens there {what}. {advice} in the URL")


def grants(address: Address, *, tables_only: bool) -> str:
    """What an administrator types so that this user may keep runs here."""
    user = f'"{address.user}"' if address.user else "the user"
    schema = address.quoted_schema
    tables = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    if tables_only:
        return f"Let an administrator run: {tables}"
    return (
        f'Let an administrator run: GRANT CREATE ON DATABASE "{address.database}" TO {user}; or, where the schema is '
        f"there: GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}; {tables}"
    )


def _caught_up(address: Address) -> str:
    """What an administrator types so that new runs get numbers that no other has."""
    runs = f"{address.quoted_schema}.runs"
    return (
        "The numbers of new runs begin anew, as after a restore of the data alone. Let an administrator run: "
        f"SELECT setval(pg_get_serial_sequence('{runs}', 'n'), (SELECT max(n) FROM {runs}))"
    )


def said(error: Exception) -> str:
    """What the error says, in one line."""
    # With and without encryption the same may have been said twice.
    lines = dict.fromkeys(line.strip().removeprefix("connection failed: ") for line in str(error).splitlines())
    return _QUESTION.sub("", " ".join(" ".join(lines).split())).rstrip(".") or type(error).__name__


def error_of(result: pq.abc.PGresult) -> psycopg.Error:
    """What the server has refused, as the error that the driver has for it."""
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode(errors="replace")
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    try:
        return errors.lookup(state)(text)
    except KeyError:
        return psycopg.OperationalError(text)
