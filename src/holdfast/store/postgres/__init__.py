"""Runs in a PostgreSQL database, for a fleet of processes on many machines, through psycopg."""

from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
