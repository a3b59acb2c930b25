"""The builtin values that JSON has no word for, and the marks that stand for them.

A mark is a dict whose "$" says the kind: {"$": "bytes", "v": "AAE="}. What is not of exactly the
type named here is not touched: a subclass would lose its type.
"""

from __future__ import annotations

import math
import pathlib
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID, SafeUUID

from holdfast.core.trail import Problem, type_name

Mark = dict[str, Any]

_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_NAN = struct.pack(">d", math.nan)
_PATHS: dict[str, type[pathlib.PurePath]] = {
    cls.__name__: cls
    for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
}


def text(value: str) -> str | Mark:
    """The string itself, or a mark when it has lone surrogates, which are no Unicode text."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$": "str", "v": b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


def large_int(value: int) -> Mark:
    """The mark of an int that does not fit 64 bits. Hex, because Python limits decimal digits."""
    return {"$": "int", "v": hex(value)}


def odd_float(value: float) -> Mark:
    """The mark of a float that JSON cannot write: NaN (whichever it is) or an infinity."""
    bits = struct.pack(">d", value)
    return {"$": "float", "v": str(value) if value == value or bits == _NAN else f"nan:{bits.hex()}"}


def _take_bytes(value: bytes) -> Mark:
    return {"$": "bytes", "v": b64encode(value).decode()}


def _take_date(value: date) -> Mark:
    return {"$": "date", "v": value.isoformat()}


def _take_moment(value: datetime | time) -> Mark:
    zone = value.tzinfo
    mark: Mark = {"$": type(value).__name__, "v": value.replace(tzinfo=None).isoformat()}
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if offset.microseconds:  # Python reads some of these offsets back as UTC.
            mark["offset"] = _parts(offset)
        else:
            mark["v"] = value.isoformat()
        if name:
            mark["name"] = text(name[0])
    elif zone is not None:
        mark["zone"] = text(_zone_name(zone))
    if value.fold:
        mark["fold"] = 1
    return mark


def _zone_name(zone: tzinfo) -> str:
    from zoneinfo import ZoneInfo  # here, because it takes its time to load and most programs have no use for it

    if type(zone) is not ZoneInfo:
        raise Problem(f"a tzinfo of type {type_name(type(zone))} cannot be stored. Use datetime.timezone or ZoneInfo")
    if zone.key is None:
        raise Problem("a ZoneInfo without a key cannot be stored. Use ZoneInfo(name)")
    return zone.key


def _take_timedelta(value: timedelta) -> Mark:
    return {"$": "timedelta", "v": _parts(value)}


def _parts(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _take_decimal(value: Decimal) -> Mark:
    return {"$": "Decimal", "v": str(value)}


def _take_uuid(value: UUID) -> Mark:
    mark: Mark = {"$": "UUID", "v": str(value)}
    if value.is_safe is not SafeUUID.unknown:
        mark["safe"] = value.is_safe.name
    return mark


def _take_path(value: pathlib.PurePath) -> Mark:
    return {"$": type(value).__name__, "v": text(str(value))}


TAKE: dict[type, Callable[[Any], Mark]] = {
    bytes: _take_bytes,
    datetime: _take_moment,
    date: _take_date,
    time: _take_moment,
    timedelta: _take_timedelta,
    Decimal: _take_decimal,
    UUID: _take_uuid,
    **dict.fromkeys(_PATHS.values(), _take_path),
}
"""How a value of exactly this type is taken apart."""


def _text(mark: Mark, key: str = "v") -> str:
    found = mark[key]
    if type(found) is dict and found.get("$") == "str":
        return _build_str(found)
    return str(_exactly(found, str))


def _exactly(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Problem(f"is damaged: {kind.__name__} expected, {type_name(type(value))} found")
    return value


def _build_str(mark: Mark) -> str:
    return b64decode(_exactly(mark["v"], str), validate=True).decode("utf-8", "surrogatepass")


def _build_bytes(mark: Mark) -> bytes:
    return b64decode(_exactly(mark["v"], str), validate=True)


def _build_int(mark: Mark) -> int:
    return int(_exactly(mark["v"], str), 16)


def _build_float(mark: Mark) -> float:
    written = _exactly(mark["v"], str)
    if written.startswith("nan:"):
        return float(struct.unpack(">d", bytes.fromhex(written[4:]))[0])
    return float(written)


def _build_date(mark: Mark) -> date:
    return date.fromisoformat(_text(mark))


def _build_datetime(mark: Mark) -> datetime:
    value = datetime.fromisoformat(_text(mark))
    return value.replace(tzinfo=_zone(mark, value), fold=_fold(mark))


def _build_time(mark: Mark) -> time:
    value = time.fromisoformat(_text(mark))
    return value.replace(tzinfo=_zone(mark, value), fold=_fold(mark))


def _fold(mark: Mark) -> int:
    return int(_exactly(mark.get("fold", 0), int))


def _zone(mark: Mark, value: datetime | time) -> tzinfo | None:
    if "zone" in mark:
        key = _text(mark, "zone")
        try:
            if _ZONE.fullmatch(key):
                from zoneinfo import ZoneInfo

                return ZoneInfo(key)
        except Exception as error:
            raise Problem(
                f"the time zone {key} is not known on this machine. Install its time zone data (pip install tzdata)"
            ) from error
        raise Problem(f"{key[:80]!r} is no time zone")
    offset = _timedelta(mark["offset"]) if "offset" in mark else value.utcoffset()
    if offset is None:
        return None
    return timezone(offset, _text(mark, "name")) if "name" in mark else timezone(offset)


def _build_timedelta(mark: Mark) -> timedelta:
    return _timedelta(mark["v"])


def _timedelta(parts: Any) -> timedelta:
    days, seconds, microseconds = (_exactly(part, int) for part in _exactly(parts, list))
    return timedelta(days, seconds, microseconds)


def _build_decimal(mark: Mark) -> Decimal:
    return Decimal(_text(mark))


def _build_uuid(mark: Mark) -> UUID:
    return UUID(_text(mark), is_safe=SafeUUID[mark.get("safe", "unknown")])


def _build_path(mark: Mark) -> pathlib.PurePath:
    return _PATHS[mark["$"]](_text(mark))


_MOMENT = frozenset({"zone", "offset", "name", "fold"})

BUILD: dict[str, tuple[Callable[[Mark], Any], frozenset[str]]] = {
    "str": (_build_str, frozenset()),
    "bytes": (_build_bytes, frozenset()),
    "int": (_build_int, frozenset()),
    "float": (_build_float, frozenset()),
    "date": (_build_date, frozenset()),
    "datetime": (_build_datetime, _MOMENT),
    "time": (_build_time, _MOMENT),
    "timedelta": (_build_timedelta, frozenset()),
    "Decimal": (_build_decimal, frozenset()),
    "UUID": (_build_uuid, frozenset({"safe"})),
    **dict.fromkeys(_PATHS, (_build_path, frozenset[str]())),
}
"""How the mark of a kind becomes a value again, and what a mark may hold beside "$" and "v"."""
