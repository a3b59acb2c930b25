"""What the driver and the server complain of, told as errors of ours: one line that says what to do next.

Nothing that the driver says holds a password: libpq names host, port, user and database only.
"""

from __future__ import annotations

import re
from typing import Literal

import psycopg
from psycopg import errors
from psycopg_pool import PoolTimeout

from holdfast.errors import StoreDamagedError, StoreError, StoreUnavailableError
from holdfast.store.postgres.address import Address

_GO_ON = "Nothing unacknowledged was counted as done; see to the server, then run it again"
_QUESTION = re.compile(r" Is the server running [^?]*\?")
_REFUSED = (errors.InvalidPassword, errors.InvalidAuthorizationSpecification)
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)
_BROKEN = (errors.DataCorrupted, errors.IndexCorrupted, errors.UniqueViolation, errors.NotNullViolation)


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


def told(error: Exception, address: Address) -> StoreError:
    """The error of ours for one of the driver's."""
    where, what = address.shown, said(error)
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreUnavailableError(f"{where}: {what}. {grants(address)}")
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return StoreUnavailableError(f"{where}: {what}. {read_only()}")
    if isinstance(error, _MISSING):
        return StoreUnavailableError(
            f"{where}: {what}. The tables of the store are not there any more: name another schema, or put them back"
        )
    if isinstance(error, _BROKEN):
        return StoreDamagedError(None, None, f"{where}: {what}")
    return StoreUnavailableError(f"{where}: {what}. {_GO_ON}")


def not_reached(error: Exception, address: Address) -> StoreUnavailableError:
    """Why there is no connection, and what to do about it."""
    what = said(error)
    if isinstance(error, _REFUSED) or "authentication failed" in what or "no password supplied" in what:
        advice = "Check the user and the password in the URL, or set PGPASSWORD or ~/.pgpass"
    elif isinstance(error, errors.InvalidCatalogName) or ("database" in what and "does not exist" in what):
        advice = f"Create it (createdb {address.database}), or name another one"
    elif isinstance(error, errors.TooManyConnections) or "too many" in what:
        advice = "Raise max_connections of the server, or run fewer processes"
    elif "role" in what and "does not exist" in what:
        advice = "Create the user, or name another one in the URL"
    else:
        advice = "Start the server, or check host and port in the URL"
    return StoreUnavailableError(f"{address.shown}: {what}. {advice}")


def grants(address: Address) -> str:
    """What an administrator types so that this user may keep runs here."""
    user = f'"{address.user}"' if address.user else "the user"
    schema = address.quoted_schema
    return (
        f'Let an administrator run: GRANT CREATE ON DATABASE "{address.database}" TO {user}; or, where the schema is '
        f"there: GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    )


def read_only() -> str:
    """What to do about a server that takes no writes."""
    return "It only reads: name the primary server, not a replica, or switch default_transaction_read_only off"


def said(error: Exception) -> str:
    """What the error says, in one line."""
    text = " ".join(str(error).split())
    return _QUESTION.sub("", text).rstrip(".") or type(error).__name__
