"""Runs in one SQLite file, through apsw, which brings a current SQLite of its own."""

from holdfast.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
