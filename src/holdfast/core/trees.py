"""What can be asked of a tree: whether it equals another one exactly, and whether it holds marks."""

from __future__ import annotations

from gc import get_referents
from itertools import chain, repeat
from math import copysign
from operator import contains
from typing import Any

import msgspec

MARK = "$"
"""The key by which a dict in a tree is known as a mark; plain data that has such a key is stored as pairs."""

_dumps = msgspec.json.Encoder().encode
_flat = chain.from_iterable
_WRITTEN = b'"$"'
_BYTE = ord(MARK)
_pack = msgspec.msgpack.Encoder().encode
_MANY_BYTES = 100_000
_PACKED_MARK = _pack(MARK)
_LEAVES = frozenset({str, int, float, bool, type(None)})
_PLAIN = _LEAVES | {dict, list}


def same(one: Any, other: Any) -> bool:
    """Whether two trees are exactly equal; `==` alone takes 1 for True and knows no order of keys."""
    kind = type(one)
    if one is other:
        return True
    if kind is not type(other) or one != other:
        return False
    if kind is float:
        return copysign(1.0, one) == copysign(1.0, other)
    return kind not in (dict, list) or _dumps(one) == _dumps(other)


class LongList:
    """The last long list that was encoded, kept as bytes so that the next one can be compared at C speed.

    Equal bytes mean the same shape, order of keys, numbers and texts; what they cannot tell apart (a subclass,
    an enum, a tuple) has another type. Only identity and types are asked for, so nothing of the user's runs.
    Lists of long texts are not kept: their items are few for their bytes, and looking at each costs less.
    """

    def __init__(self) -> None:
        self._kept: tuple[Any, bytes] = (None, b"")

    def begins(self, values: list[Any], trees: list[Any]) -> bytes | None:
        """The bytes of `values` when they are plain data that begins with exactly `trees`; else, or not known, None."""
        known, before = self._kept
        try:
            if known is not trees:
                if len(_pack(trees[-1])) * len(trees) > _MANY_BYTES:
                    return None
                before = _items(trees)
                if _PACKED_MARK in before:
                    return None  # plain data may look like a mark, and is not what the mark stands for
            now = _items(values)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return None  # not plain; a structure that refers to itself has no bytes either
        return now if now.startswith(before) and _is_plain_data(values) else None

    def keep(self, trees: list[Any], data: bytes) -> None:
        """Remember that these are the bytes of that tree."""
        self._kept = (trees, data) if len(data) <= _MANY_BYTES else (None, b"")


def _items(values: list[Any]) -> bytes:
    """The items one after the other, without the length in front of them."""
    return _pack(values)[1 if len(values) < 16 else 3 if len(values) < 1 << 16 else 5 :]


def _is_plain_data(values: list[Any]) -> bool:
    level = values
    while not (kinds := set(map(type, level))) <= _LEAVES:
        if not kinds <= _PLAIN:
            return False
        level = get_referents(*level)  # all that the containers of one level hold, in one call
    return True


def may_hold_marks(data: bytes) -> bool:
    """False when no tree in this JSON, as `dumps` writes it, holds a mark.

    A tree is plain when it was made from JSON without marks by changes without marks, so whoever has
    the bytes need not look through the tree.
    """
    # The one byte is rare, and found at once by its number: what is no number is taken for one first, and fails.
    return _BYTE in data and _WRITTEN in data


def is_plain(tree: Any, limit: int) -> bool:
    """Whether the tree holds no marks, so that a bare copy of it is its value.

    False as well when it has more than `limit` levels. All dicts of one level are looked at together:
    a call for each would cost more than copying them.
    """
    level = [tree]
    for _ in range(limit):
        dicts = [node for node in level if type(node) is dict]
        lists = [node for node in level if type(node) is list]
        if True in map(contains, dicts, repeat(MARK)):
            return False
        level = [*_flat(map(dict.values, dicts)), *_flat(lists)]
        if {dict, list}.isdisjoint(map(type, level)):
            return True
    return False
