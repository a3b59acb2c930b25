"""Where the database is: read from the URL, with defaults for what it does not say, and shown without secrets."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from typing import Any, NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import UsageError

SCHEMA_OPTION = "holdfast_schema"
DEFAULT_SCHEMA = "holdfast"
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

# A password with one of / ? @ in it would be read as something else, and shown as that.
_HOST = r"(\[[^\]@/?]*\]|[^\[@/?:,]*)(:[0-9]*)?"
_READABLE = re.compile(rf"postgres(ql)?://([^@/?]*@)?{_HOST}(,{_HOST})*(/[^@/?]*)?(\?[^@]*)?")
_UNREADABLE = (
    "the URL of the PostgreSQL store cannot be read. Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %XX for "
    "special characters in the password (/ is %2F, @ is %40, : is %3A, ? is %3F, & is %26)"
)
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

# A server that is gone without a word is noticed within half a minute; whoever knows better says so in the URL.
_DEFAULTS: dict[str, Any] = {
    "application_name": "holdfast",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


class Address(NamedTuple):
    """A database and the schema in it that holds the runs. Only `shown` may be shown to anybody."""

    conninfo: str
    schema: str
    shown: str
    user: str
    database: str

    @property
    def quoted_schema(self) -> str:
        """The schema as an identifier in SQL."""
        return f'"{self.schema}"'

    @property
    def only_host(self) -> tuple[str, int] | None:
        """Host and port, where the URL names one host that is reached over the network."""
        given = conninfo_to_dict(self.conninfo)
        host = str(given.get("hostaddr") or given.get("host") or "")
        port = str(given.get("port") or os.environ.get("PGPORT") or 5432)
        return (host, int(port)) if host and host[0] not in "/@" and "," not in host and port.isdecimal() else None

    def conninfo_with(self, **settings: Any) -> str:
        """The same place with these settings of libpq."""
        return make_conninfo(self.conninfo, **settings)


def read_address(url: str, schema: str | None = None) -> Address:
    """The place that a URL names; `schema` counts before the one in the URL.

    Raises UsageError, without repeating the URL, for what cannot be read: it may hold a password.
    """
    url, named = _without_schema(url)
    schema = schema if schema is not None else named if named is not None else DEFAULT_SCHEMA
    if not _SCHEMA.fullmatch(schema) or schema.lower().startswith("pg_"):
        raise UsageError(
            f"{ascii(schema)[:80]} cannot be the name of a schema. Use letters, digits and _, at most 63, "
            f"beginning with a letter and not with pg_"
        )
    if not _READABLE.fullmatch(url):
        raise UsageError(_UNREADABLE)
    _check_options(url)
    try:
        given = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError, ValueError):
        # What libpq says of it quotes pieces of the URL, and a piece may be the password.
        raise UsageError(_UNREADABLE) from None
    if given.get("sslmode", "prefer") not in _SSL_MODES:
        raise UsageError(
            f"sslmode in the URL is none of {', '.join(_SSL_MODES)}. Write sslmode=require for encryption, "
            f"sslmode=verify-full to have the server's certificate checked too"
        )
    settings = {**_DEFAULTS, **given, "client_encoding": "utf8"}
    return Address(make_conninfo("", **settings), schema, _shown(given, schema), *_who(given))


def _without_schema(url: str) -> tuple[str, str | None]:
    """The URL as libpq knows it, and the schema that our own option names."""
    place, mark, options = url.partition("?")
    if not mark:
        return url, None
    kept, found = [], None
    for option in options.split("&"):
        name, _, value = option.partition("=")
        if name == SCHEMA_OPTION:
            found = value
        else:
            kept.append(option)
    return (f"{place}?{'&'.join(kept)}" if kept else place), found


def _check_options(url: str) -> None:
    """Refuse what libpq has no option for. What comes behind a password may be the rest of it, and is not named."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    for option in url.partition("?")[2].split("&"):
        name, equals, value = option.partition("=")
        name = unquote(name)
        if name in known or not equals or (name, value) == ("ssl", "true"):  # the last is for users of JDBC
            if "password" in name:
                return
            continue
        near = get_close_matches(name, (*known, SCHEMA_OPTION), n=1)
        guess = f": did you mean {near[0]}?" if near else "."
        raise UsageError(
            f"{name[:80]!a} is no option of a PostgreSQL store{guess} There are {SCHEMA_OPTION} and those of libpq, as "
            f"sslmode, connect_timeout and application_name"
        )


def _who(given: dict[str, Any]) -> tuple[str, str]:
    user = str(given.get("user") or "")
    return user, str(given.get("dbname") or user)


def _shown(given: dict[str, Any], schema: str) -> str:
    user, database = _who(given)
    host = str(given.get("host") or given.get("hostaddr") or "")
    port = f":{given['port']}" if given.get("port") else ""
    name = f"postgresql://{user + '@' if user else ''}{host}{port}/{database}"
    return ascii(name)[1:-1] + (f" (schema {schema})" if schema != DEFAULT_SCHEMA else "")
