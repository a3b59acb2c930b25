"""From what a user writes to a store. A store's driver is imported only when it is asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from holdfast.clock import Clock
from holdfast.errors import StoreUnavailableError, UsageError
from holdfast.store.base import Store

DEFAULT = ".holdfast/runs.db"
_SCHEMES = ("sqlite", "file", "postgresql", "postgres", "redis", "rediss", "unix", "memory")
_KINDS = "sqlite:FILE, file:FOLDER, postgresql://HOST/DATABASE, redis://HOST or memory:"


def locate(
    where: str | os.PathLike[str] | Store | None,
    *,
    clock: Clock | None = None,
    durability: Literal["power", "process"] = "power",
    create: bool = True,
) -> Store:
    """The store for a URL, a database file's path, or None.

    A URL is `sqlite:FILE`, `file:FOLDER`, `postgresql://HOST/DATABASE`, `redis://HOST` or `memory:`. None keeps
    nothing. A store object is given back as it is. With create=False a store that is not there raises
    StoreUnavailableError, at the latest when it is opened.
    """
    if isinstance(where, Store):
        return where
    if where is None:
        from holdfast.store.memory import MemoryStore

        return MemoryStore(clock, keep=False)
    text = _text_of(where)
    scheme, colon, rest = text.partition(":")
    if scheme == "memory" and colon:
        from holdfast.store.memory import MemoryStore

        return MemoryStore(clock)
    if scheme == "file" and colon:
        from holdfast.store.files import FilesStore

        folder = _path(rest, text)
        _check_there(folder, create)
        return FilesStore(folder, clock=clock, durability=durability)
    if scheme in ("postgresql", "postgres") and colon:
        return _postgres(text, durability, create)
    if scheme in ("redis", "rediss", "unix") and colon:
        return _redis(text, create)
    if scheme == "sqlite" and colon:
        text = _database(rest, text)
        if text == ":memory:":
            raise UsageError("SQLite's :memory: is a database of one connection. Write memory: to keep runs in memory.")
    elif isinstance(where, str) and text in _SCHEMES:
        raise UsageError(
            f"{text!r} is a kind of store, and which one is missing. Use {_KINDS}; for a file of that "
            f"name, sqlite:{text}"
        )
    elif colon and "/" not in scheme:
        raise UsageError(f"{_shown(text)}: no store is called {scheme!r}. Use {_KINDS}")
    if not text:
        raise UsageError(f"the store's name is empty. Use {_KINDS}")
    _check_there(text, create)
    from holdfast.store.sqlite import SqliteStore

    return SqliteStore(text, clock=clock, durability=durability)


def _text_of(where: object) -> str:
    try:
        text = os.fspath(where)  # type: ignore[call-overload]
    except TypeError:
        text = where
    if not isinstance(text, str):
        raise UsageError(f"{text!a} is no store. Use {_KINDS}, a database file's path as text, or a store object")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise UsageError(f"{_shown(text)} has a character that no name of a file or a server has. Leave it out")
    return text


def _postgres(url: str, durability: Literal["power", "process"], create: bool) -> Store:
    try:
        from holdfast.store.postgres import PostgresStore
    except ImportError as error:
        # Without a libpq, psycopg is there and cannot be imported either: the extra brings one.
        if error.name is not None and error.name.partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        raise UsageError("a store in PostgreSQL needs its driver: pip install 'holdfast[postgres]'") from error
    return PostgresStore(url, durability=durability, create=create)


def _redis(url: str, create: bool) -> Store:
    try:
        from holdfast.store.redis import RedisStore
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "redis":
            raise
        raise UsageError("a store in Redis needs its driver: pip install 'holdfast[redis]'") from error
    return RedisStore(url, create=create)


def _check_there(path: str, create: bool) -> None:
    if not create and not os.path.lexists(path):
        raise StoreUnavailableError(f"there is no store at {path!a}. Name another one, or run something in it.")


def default_location(*, create: bool = True) -> str:
    """$HOLDFAST_STORE, else `.holdfast/runs.db` under the working directory, whose folder is made."""
    named = os.environ.get("HOLDFAST_STORE")
    if named:
        return named
    if create:
        Path(DEFAULT).parent.mkdir(mode=0o700, exist_ok=True)
    return f"sqlite:{DEFAULT}"


def _database(rest: str, text: str) -> str:
    """The file that is named. What is another one, or the same with options, to other programs is refused."""
    path = rest.lstrip("/")
    if rest.startswith("//") and path:
        raise UsageError(
            f"{_shown(text)} is one file to some programs and another one to others. Write sqlite:{path} for the one "
            f"below this folder, sqlite:/{path} for the one below /"
        )
    if rest.startswith("file:"):
        raise UsageError(f"{_shown(text)} has a URI where a file's name belongs. Write sqlite:runs.db")
    return _path(rest, text)


def _path(rest: str, text: str) -> str:
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if path.startswith("//") or not path:
        scheme, what, example = (
            ("file", "folder", "runs") if text.startswith("file:") else ("sqlite", "file", "runs.db")
        )
        raise UsageError(f"{_shown(text)} names no {what}. Write {scheme}:{example} or {scheme}:/var/lib/app/{example}")
    return path


def _shown(text: str) -> str:
    """The URL without its password, wherever it stands: rather too much is hidden than too little."""
    text = re.sub(r":.*@", ":***@", text, flags=re.DOTALL)
    return ascii(re.sub(r"(?i)((?:pass|pwd|secret|token|key)[a-z_]*=)[^&]*", r"\1***", text))
