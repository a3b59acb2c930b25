"""Lists of runs: their filters, and metadata, checked before anything is written or read; and the runs page by page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import check_id
from holdfast.core.transitions import stored_states
from holdfast.engine.views import run_view
from holdfast.errors import InvalidFilterError, InvalidIdError, StoreDamagedError, UsageError
from holdfast.model import Head, Query, Run, RunStatus
from holdfast.store.base import Store

_MOST = 1_000_000_000
_PAGE = 100
_SECONDS = re.compile(r"-?[0-9]{1,16}\.[0-9]{1,16}")


class ListQuery:
    """A query that is read page by page."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def page(self, size: int) -> Query:
        """The query for the next page."""
        return replace(self._query, limit=size)

    def behind(self, head: Head) -> ListQuery:
        """The query that goes on behind this run."""
        return ListQuery(replace(self._query, after=(head.created_at, head.id)))


def list_query(
    status: Any,
    flow: Any,
    metadata: dict[str, Any] | None,
    parent: str | None,
    created_after: datetime | None,
    created_before: datetime | None,
    limit: int | None,
    after: str | None,
) -> ListQuery:
    """The query for these filters. Raises InvalidFilterError."""
    if limit is not None and (type(limit) is not int or not 0 <= limit <= _MOST):
        raise InvalidFilterError(f"limit={limit!r}: it must be a whole number from 0 to {_MOST}")
    states = None
    if status is not None:
        states = tuple(pair for one in _many(status) for pair in stored_states(_status(one)))
    return ListQuery(
        Query(
            states=states,
            flows=None if flow is None else tuple(_text("flow", one) for one in _many(flow)),
            metadata=_scalars(metadata or {}),
            parent=None if parent is None else check_id(parent),
            created_from=_seconds("created_after", created_after),
            created_before=_seconds("created_before", created_before),
            after=None if after is None else _cursor(after),
        )
    )


async def runs_of(store: Store, query: ListQuery, limit: int | None) -> AsyncIterator[Run]:
    """The runs that match, as users see them, so many at most. One that cannot be read is told behind all others."""
    left, damaged = limit, None
    while left is None or left > 0:
        size = _PAGE if left is None else min(left, _PAGE)
        heads = await store.list_heads(query.page(size))
        for head in heads:
            try:
                run = run_view(head)
            except StoreDamagedError as error:
                damaged = damaged or error
            else:
                yield run
        if len(heads) < size:
            break
        query = query.behind(heads[-1])
        left = None if left is None else left - len(heads)
    if damaged is not None:
        raise damaged


def page_cursor(run: Run) -> str:
    """Names the place behind a run."""
    return f"{run.created_at.timestamp()!r}:{run.id}"


def _cursor(text: object) -> tuple[float, str]:
    try:
        seconds, _, run = str(text).partition(":")
        if not _SECONDS.fullmatch(seconds):
            raise ValueError(seconds)
        return float(seconds), check_id(run)
    except (ValueError, InvalidIdError):
        raise InvalidFilterError(f"{ascii(text)[:80]} is not a page cursor; use what rt.page(run) gave") from None


def _many(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _status(value: Any) -> RunStatus:
    try:
        return RunStatus(value)
    except ValueError:
        known = ", ".join(RunStatus)
        raise InvalidFilterError(f"{ascii(value)[:80]} is no status. The statuses are: {known}") from None


def _text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise InvalidFilterError(f"{name}={ascii(value)[:80]}: it must be a text")
    if not _is_unicode(value):
        raise InvalidFilterError(f"{name}={ascii(value)[:80]}: no flow can be called that")
    return value


def _is_unicode(value: object) -> bool:
    """Whether it is free of lone surrogates, which no store holds outside of a state."""
    return type(value) is not str or not any("\ud800" <= char <= "\udfff" for char in value)


def _scalars(metadata: Any) -> tuple[tuple[str, Any], ...]:
    if type(metadata) is not dict:
        raise InvalidFilterError(f"metadata={ascii(metadata)[:80]}: it must be a dict of keys and values")
    for key, value in metadata.items():
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise InvalidFilterError(f"metadata filter {ascii(key)[:80]}: integers have at most 64 bits")
        if type(key) is not str or (value is not None and type(value) not in (str, int, float, bool)):
            raise InvalidFilterError(
                f"metadata filter {ascii(key)[:80]}: keys are texts, values are texts, numbers, booleans or None"
            )
        if not (_is_unicode(key) and _is_unicode(value)):
            raise InvalidFilterError(f"metadata filter {ascii(key)[:80]}: metadata has no lone surrogates")
    return tuple(metadata.items())


def _seconds(name: str, value: datetime | None) -> float | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidFilterError(f"{name}={value!r}: it must be a datetime with a time zone")
    return value.timestamp()


def encode_metadata(metadata: dict[str, Any] | None) -> bytes:
    """Metadata as JSON, exactly. Raises UsageError for what JSON cannot hold."""
    if metadata is None:
        return b"{}"
    try:
        encoded = msgspec.json.encode(metadata)
        if type(metadata) is dict and msgspec.json.decode(encoded) == metadata:
            for key, value in metadata.items():
                if type(value) is int and not -(2**63) <= value < 2**63:
                    raise UsageError(f"metadata[{key!r}] is an integer of more than 64 bits; store it as a text")
            return encoded
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"metadata must be a plain JSON object: {error}") from error
    raise UsageError("metadata must be a JSON object of texts, numbers, booleans, lists and objects")
