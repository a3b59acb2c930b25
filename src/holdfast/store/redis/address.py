"""Which server a URL means, and under which prefix the store's keys stand there."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from holdfast.errors import UsageError

PREFIX = "holdfast"
_PREFIXES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_OPTIONS = frozenset(
    {"db", "client_name", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
)
_CERT_REQS = ("none", "optional", "required")
_EXAMPLE = "Write redis://HOST:PORT/DB?prefix=NAME, rediss://... or unix:///PATH?db=DB"


class Address(NamedTuple):
    """A URL that the driver understands, the prefix, and the name of the place without user and password.

    `tls` is host and port where TLS is spoken, else None.
    """

    url: str
    prefix: str
    shown: str
    tls: tuple[str, int] | None


def address_of(url: str, prefix: str | None) -> Address:
    """Where the store is. Raises UsageError, which never shows a password, when that is not clear."""
    read = _read(url)
    if read is None:
        raise UsageError(f"the URL of the Redis server cannot be read. {_EXAMPLE}")
    parts, port, options = read
    named = options.pop("prefix", None)
    found = prefix if prefix is not None else named if named is not None else PREFIX
    _check(parts.scheme, parts.path, options)
    if not _PREFIXES.fullmatch(found):
        raise UsageError(
            f"the prefix {found[:80]!a} is not one: 1 to 64 of A-Z a-z 0-9 . _ - that begin with a letter or digit"
        )
    db = options.get("db", "" if parts.scheme == "unix" else parts.path.strip("/")) or "0"
    host, port = parts.hostname or "localhost", port or 6379
    place = unquote(parts.path) if parts.scheme == "unix" else f"{host}:{port}"
    cleaned = f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{urlencode(options)}" if options else "")
    shown = f"the Redis store {found!r} at {ascii(f'{place} db {db}')[1:-1]}"
    return Address(cleaned, found, shown, (host, port) if parts.scheme == "rediss" else None)


def _read(url: str) -> tuple[SplitResult, int | None, dict[str, str]] | None:
    """The parts of a URL. What the parser complains of may be the password itself: its error goes no further."""
    try:
        parts = urlsplit(url)
        return parts, parts.port, dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        return None


def _check(scheme: str, path: str, options: dict[str, str]) -> None:
    if scheme not in ("redis", "rediss", "unix"):
        raise UsageError(f"no Redis server is named by {scheme!a}. {_EXAMPLE}")
    _check_options(scheme, options)
    number = options.get("db", "" if scheme == "unix" else path.strip("/"))
    if number and not (number.isascii() and number.isdecimal()):
        raise UsageError(f"what stands behind the host is no number of a database. {_EXAMPLE}")
    if scheme == "unix" and not path:
        raise UsageError(f"the URL names no socket. {_EXAMPLE}")


def _check_options(scheme: str, options: dict[str, str]) -> None:
    # Only the first is named: what comes behind a password may be the rest of it.
    unknown = next((name for name in options if name not in _OPTIONS), None)
    if unknown in ("username", "password"):
        raise UsageError(
            f"user and password of a Redis store stand before the host: {scheme}://USER:PASSWORD@HOST:PORT"
        )
    if unknown is not None:
        raise UsageError(
            f"{unknown[:80]!a} is no option of a Redis store. There are: prefix, {', '.join(sorted(_OPTIONS))}"
        )
    of_tls = next((name for name in options if name.startswith("ssl_")), None)
    if of_tls is not None and scheme != "rediss":
        raise UsageError(f"{of_tls} is an option of TLS, which {scheme}:// does without. Write rediss://HOST:PORT")
    if options.get("ssl_cert_reqs", "none") not in _CERT_REQS:
        raise UsageError(
            f"ssl_cert_reqs in the URL is none of {', '.join(_CERT_REQS)}. Leave it out to have it required"
        )
