"""From a value to its tree, keeping every part of an earlier tree that still holds.

Each handler takes a value, the earlier tree at the same place (or ABSENT) and the depth, and gives
either that very tree, when the value is exactly what it says, or a new one. There is one handler
for each exact type, and no more calls than levels of the tree: what can be stored must not run out of
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from math import copysign, inf
from operator import is_
from typing import Any

import msgspec

from holdfast.core import scalars
from holdfast.core.lookalikes import kind_of
from holdfast.core.marks import MARK
from holdfast.core.shapes import Shape
from holdfast.core.trail import Problem, at_index, at_key, type_name
from holdfast.core.types import shape_of

MAX_DEPTH = 400
"""How many levels of JSON a state may have. A tuple, a set or an object takes two, a dict of pairs three."""

ABSENT: Any = object()
"""Stands for the earlier tree where there is none."""

Handler = Callable[[Any, Any, int], Any]

_INT64 = 1 << 63
_dumps = msgspec.json.Encoder().encode


class Encoder:
    """Turns values into trees, by the exact type of each."""

    def __init__(self) -> None:
        self._handlers: dict[type, Handler] = {
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
        self._shapes: dict[type, Shape] = {}

    def add(self, cls: type, shape: Shape) -> None:
        """Handle instances of exactly `cls` by their shape."""
        self._shapes[cls] = shape
        self._handlers[cls] = self._typed

    def tree(self, value: Any, old: Any) -> Any:
        """The tree of a value, with every part of the tree `old` that still holds.

        Raises Problem when the value would not come back exactly.
        """
        return self._handlers.get(type(value), _refuse)(value, old, 1)

    def _dict(self, value: dict[Any, Any], old: Any, depth: int) -> Any:
        if type(old) is not dict or len(value) != len(old) or MARK in old:
            return self._new_dict(value, old, depth)
        if depth > MAX_DEPTH:
            raise too_deep()
        out, key = old, ""
        try:
            for key, was in zip(value, old, strict=True):
                if key is not was:
                    return self._new_dict(value, old, depth)
                # Looking up `key` runs no code of the user's: it is a string of the old tree.
                if value[key] is not old[key]:
                    item, before = value[key], old[key]
                    tree = self._handlers.get(type(item), _refuse)(item, before, depth + 1)
                    if tree is not before:
                        if out is old:
                            out = old.copy()
                        out[key] = tree
        except Problem as problem:
            problem.trail.append(at_key(key))
            raise
        return out

    def _new_dict(self, value: dict[Any, Any], old: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise too_deep()
        if not _json_keys(value):
            return self._pairs(value, old, depth)
        if type(old) is not dict or MARK in old:
            old = {}
        out, key = {}, ""
        try:
            for key, item in value.items():
                out[key] = self._handlers.get(type(item), _refuse)(item, old.get(key, ABSENT), depth + 1)
        except Problem as problem:
            problem.trail.append(at_key(key))
            raise
        same = len(out) == len(old) and list(out) == list(old) and all(map(is_, out.values(), old.values()))
        return old if same and old else out

    def _pairs(self, value: dict[Any, Any], old: Any, depth: int) -> Any:
        """A dict with keys that JSON does not have, or with a key that could be taken for a mark."""
        before = _body(old, "dict")
        out: list[Any] = []
        key = None
        try:
            for index, (key, item) in enumerate(value.items()):
                pair = before[index] if index < len(before) else (ABSENT, ABSENT)
                key_tree = self._key(key, pair[0], depth + 3)
                tree = self._handlers.get(type(item), _refuse)(item, pair[1], depth + 3)
                out.append(pair if key_tree is pair[0] and tree is pair[1] else [key_tree, tree])
        except Problem as problem:
            problem.trail.append(at_key(key))
            raise
        return _kept(old, "dict", before, out)

    def _key(self, key: Any, old: Any, depth: int) -> Any:
        try:
            return self._handlers.get(type(key), _refuse)(key, old, depth)
        except Problem as problem:
            problem.problem = f"its key: {problem.problem}"
            raise

    def _list(self, value: Sequence[Any], old: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise too_deep()
        if type(old) is not list:
            old = _NOTHING
        elif len(value) == len(old) and all(map(is_, value, old)):
            return old
        find = self._handlers.get
        out: list[Any] = []
        news, olds, aligned = value, old, False
        try:
            while True:
                for item, before in zip(news, olds, strict=False):
                    if item is not before:
                        tree = find(type(item), _refuse)(item, before, depth + 1)
                        if tree is not before and not aligned and len(out) + 1 < len(old):
                            news, olds, aligned = value[len(out) :], self._align(value, len(out), old, depth), True
                            break
                        before = tree
                    out.append(before)
                else:
                    break
            for item in value[len(out) :]:
                out.append(find(type(item), _refuse)(item, ABSENT, depth + 1))
        except Problem as problem:
            problem.trail.append(at_index(len(out)))
            raise
        same = len(out) == len(old) and all(map(is_, out, old))
        return old if same and old is not _NOTHING else out

    def _align(self, value: Sequence[Any], at: int, old: list[Any], depth: int) -> list[Any]:
        """The old items that the items from `at` on continue, where `value[at]` is not just `old[at]`.

        Finds what was cut there (a window that moves on) or put in. A wrong guess costs bytes, no more.
        """
        following = value[at + 1 : at + 2]
        if following and self._is_still(following[0], old[at + 1], depth):
            return old[at:]  # The next one is in its place, so this one was changed in its own.
        for further in range(at + 1, len(old)):
            if self._is_still(value[at], old[further], depth):
                return old[further:]
        if following and self._is_still(following[0], old[at], depth):
            return [ABSENT, *old[at:]]
        return old[at:]

    def _is_still(self, item: Any, old: Any, depth: int) -> bool:
        return item is old or self._handlers.get(type(item), _refuse)(item, old, depth + 1) is old

    def _tuple(self, value: tuple[Any, ...], old: Any, depth: int) -> Any:
        before = _body(old, "tuple")
        return _kept(old, "tuple", before, self._list(value, before, depth + 1))

    def _set(self, value: set[Any] | frozenset[Any], old: Any, depth: int) -> Any:
        kind = type(value).__name__
        before = _body(old, kind)
        out: list[Any] = []
        try:
            for item in value:
                out.append(self._handlers.get(type(item), _refuse)(item, ABSENT, depth + 2))
        except Problem as problem:
            problem.trail.append(f"[an item of the {kind}]")
            raise
        # A set has no order of its own, and Python's differs from process to process.
        out.sort(key=_dumps)
        return old if before is not _NOTHING and _dumps(before) == _dumps(out) else {MARK: kind, "v": out}

    def _typed(self, value: Any, old: Any, depth: int) -> Any:
        shape = self._shapes[type(value)]
        parts = shape.take(value)
        if type(old) is not dict or old.get(MARK) != shape.kind or old.get("type") != shape.name:
            old = {}
        out = {MARK: shape.kind, "type": shape.name}
        same = len(old) == len(parts) + 2
        for name, part in parts.items():
            before = old.get(name, ABSENT)
            out[name] = self._handlers.get(type(part), _refuse)(part, before, depth + 1)
            same = same and out[name] is before
        return old if same else out


_NOTHING: list[Any] = []


def _body(old: Any, kind: str) -> list[Any]:
    """What the earlier mark of this kind holds; _NOTHING when it is another, or none."""
    return old["v"] if type(old) is dict and old.get(MARK) == kind else _NOTHING


def _kept(old: Any, kind: str, before: list[Any], now: list[Any]) -> Any:
    """The earlier mark when it still holds, or a new one."""
    if before is not _NOTHING and len(before) == len(now) and all(map(is_, before, now)):
        return old
    return {MARK: kind, "v": now}


def _json_keys(value: dict[Any, Any]) -> bool:
    """Whether the dict can be a JSON object that nobody takes for a mark."""
    return (
        all(map(is_, map(type, value), repeat(str)))
        and MARK not in value
        and (all(map(str.isascii, value)) or all(scalars.text(key) is key for key in value))
    )


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
    same = type(old) is float and old == value and (value or copysign(1, old) == copysign(1, value))
    return old if same else value


def _str(value: str, old: Any, depth: int) -> Any:
    if value == old and type(old) is str:
        return old
    tree = scalars.text(value)
    return old if type(old) is dict and old == tree else tree


def _scalar(value: Any, old: Any, depth: int) -> Any:
    mark = scalars.TAKE[type(value)](value)
    return old if type(old) is dict and old == mark else mark


def _refuse(value: Any, old: Any, depth: int) -> Any:
    cls = type(value)
    name, base, declarable = type_name(cls), kind_of(cls), shape_of(cls) is not None
    problem = f"{name} cannot be stored"
    if base is not None:
        problem += f": it would lose its type. Convert it with {base.__name__}(...)"
    if declarable:
        problem += f"{': it is not declared. To' if base is None else ', or to'} declare it, {_how_to_declare(cls)}"
    raise Problem(problem)


def _how_to_declare(cls: type) -> str:
    name = cls.__name__
    return f"pass state={name} to the flow, annotate the step's return type with it, or call rt.register({name})"


def too_deep() -> Problem:
    """What is raised at a value that lies too deep, which is also where a self-reference ends."""
    return Problem(f"is nested deeper than {MAX_DEPTH} levels, or refers to itself, and cannot be stored")
