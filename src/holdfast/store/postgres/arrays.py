"""Columns of many rows as arrays in PostgreSQL's binary form, made with few steps of Python for each value.

A batch goes to the server as one array for each column. The text of entries is UTF-8 already and is passed on as
it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TypeVar

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

T = TypeVar("T")

_HEAD = Struct("!5i").pack  # dimensions, whether there are nulls, type of the elements, how many, number of the first
_NULL = Struct("!i").pack(-1)
_LENGTH = Struct("!i").pack
_INT = Struct("!iq").pack
_FLOAT = Struct("!id").pack
_TEXT_OID, _INT_OID, _FLOAT_OID = 25, 20, 701
_NONE: dict[int, bytes] = {oid: Struct("!3i").pack(0, 0, oid) for oid in (_TEXT_OID, _INT_OID, _FLOAT_OID)}


class TextArray(bytes):
    """A text[] as the server takes it."""


class IntArray(bytes):
    """A bigint[] as the server takes it."""


class FloatArray(bytes):
    """A float8[] as the server takes it."""


def texts(values: Sequence[bytes | str | None]) -> TextArray:
    """These texts, in UTF-8 where they are bytes."""
    some, times = _once(values)
    parts = []
    for value in some:
        if value is None:
            parts.append(_NULL)
        else:
            data = value if type(value) is bytes else value.encode()  # type: ignore[union-attr]
            parts += (_LENGTH(len(data)), data)
    return TextArray(_head(_TEXT_OID, len(values)) + b"".join(parts) * times)


def ints(values: Sequence[int | None]) -> IntArray:
    """These numbers of 64 bits."""
    some, times = _once(values)
    parts = [_INT(8, v) if v is not None else _NULL for v in some]
    return IntArray(_head(_INT_OID, len(values)) + b"".join(parts) * times)


def floats(values: Sequence[float | None]) -> FloatArray:
    """These numbers, exactly."""
    some, times = _once(values)
    parts = [_FLOAT(8, v) if v is not None else _NULL for v in some]
    return FloatArray(_head(_FLOAT_OID, len(values)) + b"".join(parts) * times)


def _once(values: Sequence[T]) -> tuple[Sequence[T], int]:
    """The values, and how often; of a column with the same value in every row, as most have, that one alone."""
    first = values[0] if values else None
    alike = values.count(first) == len(values) and first != 0  # 0.0 equals -0.0
    return (values[:1], len(values)) if alike else (values, 1)


def _head(oid: int, count: int) -> bytes:
    return _HEAD(1, 1, oid, count, 1) if count else _NONE[oid]


class _Ready(Dumper):
    """Passes on what is in the server's form already."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _ReadyTexts(_Ready):
    oid = 1009


class _ReadyInts(_Ready):
    oid = 1016


class _ReadyFloats(_Ready):
    oid = 1022


def register(known: AdaptersMap) -> None:
    """Let a connection with these adapters take the arrays."""
    known.register_dumper(TextArray, _ReadyTexts)
    known.register_dumper(IntArray, _ReadyInts)
    known.register_dumper(FloatArray, _ReadyFloats)
