"""From a tree to its value, building nothing that the program did not declare.

Containers are always new, so that whatever is done to the value leaves the tree as it is; leaves are
shared, which makes the way back cheap (see encoding.py). Whatever a tree holds, the only exception
is Problem, or RecursionError where the stack is nearly used up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core import scalars
from holdfast.core.encoding import MAX_DEPTH
from holdfast.core.marks import MARK, is_plain
from holdfast.core.trail import Problem, at_index, at_key, shown
from holdfast.core.types import Registry

# Looking for marks costs about as much as a copy, so only the upper levels are looked at as a whole.
_LOOK = 3
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_TYPED = frozenset({"object", "enum", "flag", "kind"})
_PARTS = frozenset({"v", "extra", "private", "set"})


class Decoder:
    """Builds values from trees with the types of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._builders: dict[str, Callable[[dict[str, Any], int], Any]] = {
            **dict.fromkeys(_SEQUENCES, self._sequence),
            "dict": self._pairs,
            **dict.fromkeys(_TYPED, self._typed),
            **dict.fromkeys(scalars.BUILD, _scalar),
        }

    def value(self, tree: Any, depth: int) -> Any:
        """The value of a tree that lies at this depth."""
        kind = type(tree)
        if kind is not dict and kind is not list:
            return tree
        if depth > MAX_DEPTH:
            raise Problem(f"is nested deeper than {MAX_DEPTH} levels")
        if depth <= _LOOK and is_plain(tree, MAX_DEPTH + 1 - depth):
            return msgspec.to_builtins(tree)
        if kind is list:
            return self._list(tree, depth)
        if MARK not in tree:
            return self._dict(tree, depth)
        builder = self._builders.get(tree[MARK]) if type(tree[MARK]) is str else None
        if builder is None:
            raise Problem(f"is damaged, or written by a newer Holdfast: there is no mark {shown(tree[MARK])}")
        try:
            return builder(tree, depth)
        except (Problem, RecursionError):
            raise
        except Exception as error:
            raise Problem(f"cannot be built from its {tree[MARK]} mark: {error!r:.200}") from error

    def _dict(self, tree: dict[str, Any], depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        key = ""
        try:
            for key, item in tree.items():
                # Leaves are left to no further call: a call for each would cost more than all the rest.
                out[key] = self.value(item, depth + 1) if type(item) in (dict, list) else item
        except Problem as problem:
            problem.trail.append(at_key(key))
            raise
        return out

    def _list(self, tree: list[Any], depth: int) -> list[Any]:
        out: list[Any] = []
        try:
            for item in tree:
                out.append(self.value(item, depth + 1) if type(item) in (dict, list) else item)
        except Problem as problem:
            problem.trail.append(at_index(len(out)))
            raise
        return out

    def _sequence(self, mark: dict[str, Any], depth: int) -> Any:
        items = self._list(_body(mark), depth + 1)
        value = _SEQUENCES[mark[MARK]](items)
        if len(value) != len(items):
            raise Problem(f"is damaged: an item is twice in the {mark[MARK]}")
        return value

    def _pairs(self, mark: dict[str, Any], depth: int) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        body = _body(mark)
        for key_tree, tree in body:
            key = self.value(key_tree, depth + 3)
            try:
                out[key] = self.value(tree, depth + 3)
            except Problem as problem:
                problem.trail.append(at_key(key))
                raise
        if len(out) != len(body):
            raise Problem("is damaged: a key is twice in the dict")
        return out

    def _typed(self, mark: dict[str, Any], depth: int) -> Any:
        name = mark.get("type")
        shape = self._registry.by_name.get(name) if type(name) is str else None
        if shape is None:
            raise Problem(
                f"was stored as a {shown(name)}, a type that this program does not declare. Pass it to the flow "
                f"(state=...), annotate the step's return type with it, or call rt.register(...); "
                f"if it was renamed, go back to the old name"
            )
        if shape.kind != mark[MARK]:
            raise Problem(f"was stored as {name} when that was of the kind {mark[MARK]!r}; now it is {shape.kind!r}")
        parts = {}
        for key, tree in mark.items():
            if key in _PARTS:
                parts[key] = self.value(tree, depth + 1)
            elif key not in (MARK, "type"):
                raise Problem(f"is damaged: its mark holds {shown(key)}")
        return shape.build(parts)


def _body(mark: dict[str, Any]) -> list[Any]:
    if len(mark) != 2 or type(mark.get("v")) is not list:
        raise Problem(f"is damaged: its {mark[MARK]} mark does not hold a list")
    body: list[Any] = mark["v"]
    return body


def _scalar(mark: dict[str, Any], depth: int) -> Any:
    build, more = scalars.BUILD[mark[MARK]]
    if not mark.keys() <= {MARK, "v", *more}:
        raise Problem(f"is damaged: its {mark[MARK]} mark holds more than it may")
    return build(mark)
