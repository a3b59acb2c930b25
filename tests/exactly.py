"""What a value is, exactly: for comparing where `==` is too kind."""

from __future__ import annotations

import enum
import struct
from datetime import datetime, time, timezone, tzinfo
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID


def exactly(value: Any) -> Any:
    """A description that is equal for two values only if they have the same types, signs, order and content."""
    return (type(value), _content(value))


def _content(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name, value.value
    if isinstance(value, float):
        return struct.pack(">d", value)
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return value
    if isinstance(value, dict):
        return [(exactly(key), exactly(item)) for key, item in value.items()], _attributes(value)
    if isinstance(value, (set, frozenset)):
        return sorted((exactly(item) for item in value), key=repr), _attributes(value)
    if isinstance(value, (list, tuple)):
        return [exactly(item) for item in value], _attributes(value)
    if isinstance(value, (datetime, time)):
        return value.replace(tzinfo=None).isoformat(), value.fold, _zone(value.tzinfo)
    if isinstance(value, Decimal):
        return value.as_tuple()
    if isinstance(value, UUID):
        return value.int, value.is_safe
    if isinstance(value, PurePath):
        return str(value)
    attributes = _attributes(value)
    return attributes if attributes is not None else repr(value)


def _zone(zone: tzinfo | None) -> Any:
    return zone.__getinitargs__() if isinstance(zone, timezone) else str(zone)  # type: ignore[attr-defined]


def _attributes(value: Any) -> Any:
    """Everything that is set on an object, wherever it is kept."""
    names = {name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())} - {
        "__weakref__",
        "__dict__",
    }
    held = {name: getattr(value, name) for name in names if hasattr(value, name)} | getattr(value, "__dict__", {})
    return sorted((name, exactly(item)) for name, item in held.items()) if held or names else None
