"""From a value to its tree, keeping every part of an earlier tree that still holds.

A step gets a copy of the state in which the containers are new and the leaves are those of the tree. So
whatever it did not touch still has the same leaves, and is found by identity, which is exact: 1 equals
True and 1.0, 0.0 equals -0.0, and a user's `__eq__` may say anything, but none of them is the other.

Each handler takes a value, the earlier tree at the same place (or ABSENT) and the depth, and gives
either that very tree, when the value is exactly what it says, or a new one. There is one handler
for each exact type, and no more calls than levels of the tree: what can be stored must not run out of
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign, inf, isfinite
from operator import is_
from typing import Any

import msgspec

from holdfast.core import scalars
from holdfast.core.shapes import Shape
from holdfast.core.trail import Problem, at_index, at_key
from holdfast.core.trees import MARK, LongList, same

MAX_DEPTH = 400
"""How many levels of JSON a state may have. A tuple, a set or an object takes two, a dict of pairs three."""

ABSENT: Any = object()
"""Stands for the earlier tree where there is none."""

Handler = Callable[[Any, Any, int], Any]

_INT64 = 1 << 63
_LONG = 16  # items; from there on a look at all of them at once costs less than one at each
_TEXT = frozenset({str})
_ALWAYS_LEAVES = frozenset({bool, type(None)})
_dumps = msgspec.json.Encoder().encode


class Encoder:
    """Turns values into trees, by the exact type of each. What has no handler goes to `refuse`, which raises."""

    def __init__(self, refuse: Handler) -> None:
        self._refuse = refuse
        self.handlers: dict[type, Handler] = {
            type(None): _itself,
            bool: _itself,
            int: _int,
            float: _float,
            str: _str,
            list: self._list,
            dict: self._dict,
            tuple: self._tuple,
            set: self._set,
            frozenset: self._set,
            **dict.fromkeys(scalars.TAKE, _scalar),
        }
        """What takes a value of exactly this type, its earlier tree and the depth, 1 at the top. They raise Problem."""
        self._shapes: dict[type, Shape] = {}
        self._long = LongList()

    def add(self, cls: type, shape: Shape) -> None:
        """Handle instances of exactly `cls` by their shape."""
        self._shapes[cls] = shape
        self.handlers[cls] = self._typed

    def _dict(self, value: dict[Any, Any], old: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise too_deep()
        if type(old) is not dict or MARK in old:
            return self._new_dict(value, old, depth)
        same_keys = len(value) == len(old) and all(map(is_, value, old))
        if not same_keys and not _json_keys(value):
            return self._pairs(value, old, depth)
        key = ""
        try:
            if same_keys:
                out = old
                for key in old:
                    # Looking up `key` runs no code of the user's: it is a string of the old tree.
                    item, before = value[key], old[key]
                    if item is before:
                        continue
                    if type(item) is type(before) is list and len(item) == len(before) and all(map(is_, item, before)):
                        continue  # As `_list` would find, for less than it costs to call it.
                    tree = self.handlers.get(type(item), self._refuse)(item, before, depth + 1)
                    if tree is not before:
                        out = old.copy() if out is old else out
                        out[key] = tree
                return out
            out = {}
            for key, item in value.items():
                out[key] = self.handlers.get(type(item), self._refuse)(item, old.get(key, ABSENT), depth + 1)
        except Problem as problem:
            problem.trail.append(at_key(key))
            raise
        unchanged = list(out) == list(old) and all(map(is_, out.values(), old.values()))
        return old if unchanged else out

    def _new_dict(self, value: dict[Any, Any], old: Any, depth: int) -> Any:
        """A dict where there was none, in a copy. The commonest leaves stay in it: a call for each would cost more."""
        if not _json_keys(value):
            return self._pairs(value, old, depth)
        find, refuse, key = self.handlers.get, self._refuse, ""
        out = value.copy()
        try:
            for key, item in out.items():
                kind = type(item)
                if not (
                    (kind is str and item.isascii())
                    or (kind is int and -_INT64 <= item < _INT64)
                    or (kind is float and isfinite(item))
                    or kind in _ALWAYS_LEAVES
                ):
                    out[key] = find(kind, refuse)(item, ABSENT, depth + 1)
        except Problem as problem:
            problem.trail.append(at_key(key))
            raise
        return out

    def _pairs(self, value: dict[Any, Any], old: Any, depth: int) -> Any:
        """A dict with keys that JSON does not have, or with a key that could be taken for a mark."""
        olds = _body(old, "dict")
        out: list[Any] = []
        key = None
        try:
            for key, item in value.items():
                pair = olds[len(out)] if len(out) < len(olds) else [ABSENT, ABSENT]
                key_tree = self._key(key, pair[0], depth + 3)
                tree = self.handlers.get(type(item), self._refuse)(item, pair[1], depth + 3)
                out.append(pair if key_tree is pair[0] and tree is pair[1] else [key_tree, tree])
        except Problem as problem:
            problem.trail.append(at_key(key))
            raise
        return old if _are_all(out, olds) else {MARK: "dict", "v": out}

    def _key(self, key: Any, old: Any, depth: int) -> Any:
        try:
            return self.handlers.get(type(key), self._refuse)(key, old, depth)
        except Problem as problem:
            problem.problem = f"its key: {problem.problem}"
            raise

    def _list(self, value: Sequence[Any], old: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise too_deep()
        if type(old) is not list:
            old = ()
            if _TEXT.issuperset(map(type, value)) and "".join(value).isascii():
                return list(value)  # the commonest leaves, told as in `_new_dict`
        elif len(value) == len(old) and all(map(is_, value, old)):
            return old
        find, refuse, known = self.handlers.get, self._refuse, len(old)
        data = None
        if len(value) >= known >= _LONG and type(value) is list:
            data = self._long.begins(value, old)
        out: list[Any] = list(old if data is not None else old[: _unchanged(value, old)])
        try:
            if len(out) == known:  # whatever comes then was not there before
                for item in value[known:]:
                    out.append(find(type(item), refuse)(item, ABSENT, depth + 1))
            else:
                self._changed(value, old, out, depth)
        except Problem as problem:
            problem.trail.append(at_index(len(out)))
            raise
        tree = old if len(out) == len(old) and _are_all(out, old) else out
        if data is not None:
            self._long.keep(tree, data)
        return tree

    def _changed(self, value: Sequence[Any], old: list[Any], out: list[Any], depth: int) -> None:
        """Add the items to `out` from the first one on that is not as it was."""
        find, refuse = self.handlers.get, self._refuse
        waiting, aligned = old[len(out) :][::-1], False
        for item in value[len(out) :]:
            before = waiting.pop() if waiting else ABSENT
            if item is not before:
                tree = find(type(item), refuse)(item, before, depth + 1)
                if tree is not before and waiting and not aligned:
                    aligned = True
                    tree = _align(item, value[len(out) + 1 : len(out) + 2], tree, before, waiting)
                before = tree
            out.append(before)

    def _tuple(self, value: tuple[Any, ...], old: Any, depth: int) -> Any:
        items = _body(old, "tuple")
        out = self._list(value, items, depth + 1)
        return old if out is items else {MARK: "tuple", "v": out}

    def _set(self, value: set[Any] | frozenset[Any], old: Any, depth: int) -> Any:
        kind = type(value).__name__
        out: list[Any] = []
        try:
            for item in value:
                out.append(self.handlers.get(type(item), self._refuse)(item, ABSENT, depth + 2))
        except Problem as problem:
            problem.trail.append(f"[an item of the {kind}]")
            raise
        # A set has no order of its own, and Python's differs from process to process.
        out.sort(key=_dumps)
        return old if same(_body(old, kind), out) else {MARK: kind, "v": out}

    def _typed(self, value: Any, old: Any, depth: int) -> Any:
        shape = self._shapes[type(value)]
        try:
            parts = shape.take(value)
        except (AttributeError, TypeError, ValueError) as error:
            raise Problem(f"cannot be taken apart: {error!r:.200}") from error
        if type(old) is not dict or old.get(MARK) != shape.kind or old.get("type") != shape.name:
            old = {}
        out = {MARK: shape.kind, "type": shape.name}
        unchanged = len(old) == len(parts) + 2
        for name, part in parts.items():
            before = old.get(name, ABSENT)
            out[name] = self.handlers.get(type(part), self._refuse)(part, before, depth + 1)
            unchanged = unchanged and out[name] is before
        return old if unchanged else out


def _unchanged(values: Sequence[Any], trees: Sequence[Any]) -> int:
    """How many items at the beginning are what the trees say, as far as a look at their leaves tells."""
    count = 0
    for item, before in zip(values, trees):  # noqa: B905 - one may be longer
        if item is not before and not (type(item) is type(before) is dict and _is_copy(item, before)):
            break
        count += 1
    return count


def _is_copy(value: dict[Any, Any], old: dict[str, Any]) -> bool:
    """Whether nothing but containers is new in it: leaves in it and in its lists are the very ones of the tree."""
    if len(value) != len(old) or MARK in old:
        return False
    for key, item, was, before in zip(value, value.values(), old, old.values()):  # noqa: B905 - as many, see above
        if key is not was:
            return False
        if item is not before and not (
            type(item) is type(before) is list and len(item) == len(before) and all(map(is_, item, before))
        ):
            return False
    return True


def _body(old: Any, kind: str) -> Any:
    """The list in the earlier mark of this kind; nothing when it is another, or none."""
    return old["v"] if type(old) is dict and old.get(MARK) == kind else ()


def _are_all(out: list[Any], old: Any) -> bool:
    return type(old) is list and len(out) == len(old) and all(map(is_, out, old))


def _json_keys(value: dict[Any, Any]) -> bool:
    """Whether the dict can be a JSON object that nobody takes for a mark."""
    if not _TEXT.issuperset(map(type, value)) or MARK in value:
        return False
    return "".join(value).isascii() or all(scalars.text(key) is key for key in value)


def _align(item: Any, following: Sequence[Any], tree: Any, before: Any, waiting: list[Any]) -> Any:
    """Pair the items of a list anew where one does not fit, and give the tree of that one.

    Finds what was cut in front of it, as by a window that moves on, or that it was put in itself.
    `waiting` are the old items that come next, last one first. A wrong guess costs bytes, no more.
    """
    if following and _alike(following[0], waiting[-1]):
        return tree  # The next one is in its place, so this one was changed in its own.
    for at in range(len(waiting) - 1, -1, -1):
        if _alike(item, waiting[at]):
            found = waiting[at]
            del waiting[at:]
            return found if same(found, tree) else tree
    if following and _alike(following[0], before):
        waiting.append(before)
    return tree


def _alike(item: Any, old: Any) -> bool:
    """Whether an item looks as if it came from that tree: cheap, and no proof."""
    if type(old) is dict and MARK in old:
        item, old = getattr(item, "__dict__", item), old.get("v")
    if type(item) is dict and type(old) is dict and len(item) == len(old):
        return bool(item) and all(
            a is b or type(b) in (dict, list) for a, b in zip(item.values(), old.values(), strict=True)
        )
    return item is old


def _itself(value: Any, old: Any, depth: int) -> Any:
    return value


def _int(value: int, old: Any, depth: int) -> Any:
    if -_INT64 <= value < _INT64:
        return old if type(old) is int and old == value else value
    mark = scalars.large_int(value)
    return old if type(old) is dict and old == mark else mark


def _float(value: float, old: Any, depth: int) -> Any:
    if value != value or value in (inf, -inf):
        mark = scalars.odd_float(value)
        return old if type(old) is dict and old == mark else mark
    unchanged = type(old) is float and old == value and (value or copysign(1, old) == copysign(1, value))
    return old if unchanged else value


def _str(value: str, old: Any, depth: int) -> Any:
    if type(old) is str and old == value:
        return old
    tree = scalars.text(value)
    return old if type(old) is dict and old == tree else tree


def _scalar(value: Any, old: Any, depth: int) -> Any:
    mark = scalars.TAKE[type(value)](value)
    return old if type(old) is dict and old == mark else mark


def too_deep() -> Problem:
    """What is raised at a value that lies too deep, which is also where a self-reference ends."""
    return Problem(f"is nested deeper than {MAX_DEPTH} levels, or refers to itself, and cannot be stored")
