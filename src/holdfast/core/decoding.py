"""From a tree to its value, building nothing that the program did not declare.

Containers are always new, so that whatever is done to the value leaves the tree as it is; leaves are
shared, which makes the way back cheap (see encoding.py). Whatever a tree holds, the only exception
is Problem, or RecursionError where the stack is nearly used up. As there, there are no more calls
than levels of the tree: what was stored must not run out of stack either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core import scalars
from holdfast.core.encoding import MAX_DEPTH
from holdfast.core.trail import Problem, at_index, at_key, shown
from holdfast.core.trees import MARK, is_plain
from holdfast.core.types import Registry

# Looking for marks costs about as much as a copy, so only the upper levels are looked at as a whole.
_LOOK = 3
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_TYPED = frozenset({"object", "enum", "flag", "kind"})
_PARTS = frozenset({"v", "extra", "private", "set"})

Way = Callable[[Any, int], Any]


class Decoder:
    """Builds values from trees with the types of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._marks: dict[str, Way] = {
            **dict.fromkeys(_SEQUENCES, self._sequence),
            "dict": self._pairs,
            **dict.fromkeys(_TYPED, self._typed),
            **dict.fromkeys(scalars.BUILD, _scalar),
        }

    def value(self, tree: Any) -> Any:
        """The value of a whole tree."""
        try:
            return self._way(tree)(tree, 1)
        except Exception as error:
            raise _problem(error) from error

    def _way(self, tree: Any) -> Way:
        """What builds the value of this tree."""
        kind = type(tree)
        if kind is list:
            return self._list
        if kind is not dict:
            return _leaf
        if MARK not in tree:
            return self._dict
        mark = tree[MARK]
        if type(mark) is not str or mark not in self._marks:
            raise Problem(f"is damaged, or written by a newer Holdfast: there is no mark {shown(mark)}")
        return self._marks[mark]

    def _list(self, tree: list[Any], depth: int) -> list[Any]:
        if depth <= _LOOK and is_plain(tree, MAX_DEPTH + 1 - depth):
            return msgspec.to_builtins(tree)  # type: ignore[no-any-return]
        _check_depth(depth)
        out: list[Any] = []
        try:
            for item in tree:
                out.append(self._way(item)(item, depth + 1) if type(item) in (dict, list) else item)
        except Exception as error:
            raise _problem(error, at_index(len(out))) from error
        return out

    def _dict(self, tree: dict[str, Any], depth: int) -> dict[str, Any]:
        if depth <= _LOOK and is_plain(tree, MAX_DEPTH + 1 - depth):
            return msgspec.to_builtins(tree)  # type: ignore[no-any-return]
        _check_depth(depth)
        out: dict[str, Any] = {}
        key = ""
        try:
            for key, item in tree.items():
                out[key] = self._way(item)(item, depth + 1) if type(item) in (dict, list) else item
        except Exception as error:
            raise _problem(error, at_key(key)) from error
        return out

    def _sequence(self, mark: dict[str, Any], depth: int) -> Any:
        _check_depth(depth)
        items: list[Any] = []
        try:
            for tree in _body(mark):
                items.append(self._way(tree)(tree, depth + 2))
        except Exception as error:
            raise _problem(error, at_index(len(items))) from error
        value = _SEQUENCES[mark[MARK]](items)
        if len(value) != len(items):
            raise Problem(f"is damaged: an item is twice in the {mark[MARK]}")
        return value

    def _pairs(self, mark: dict[str, Any], depth: int) -> dict[Any, Any]:
        _check_depth(depth)
        out: dict[Any, Any] = {}
        key: Any = None
        try:
            for key_tree, tree in _body(mark):
                key = self._way(key_tree)(key_tree, depth + 3)
                out[key] = self._way(tree)(tree, depth + 3)
        except Exception as error:
            raise _problem(error, at_key(key)) from error
        if len(out) != len(mark["v"]):
            raise Problem("is damaged: a key is twice in the dict")
        return out

    def _typed(self, mark: dict[str, Any], depth: int) -> Any:
        name = mark.get("type")
        shape = self._registry.by_name.get(name) if type(name) is str else None
        if shape is None:
            raise Problem(
                f"was stored as {shown(name)}, a type that this program does not declare. Pass it to the flow "
                f"(state=...), annotate the step's return type with it, or call rt.register(...); "
                f"if it was renamed, go back to the old name",
                typed=f"names the type {shown(name)}, which this program does not declare (it has: "
                f"{', '.join(self._registry.by_name) or 'none'})",
            )
        if shape.kind != mark[MARK]:
            raise Problem(
                f"was stored as {name} when that was of the kind {mark[MARK]!r}; now it is {shape.kind!r}",
                typed=f"names {name} as of the kind {mark[MARK]!r}, but it is {shape.kind!r}",
            )
        parts = {}
        for key, tree in mark.items():
            if key in _PARTS:
                parts[key] = self._way(tree)(tree, depth + 1)
            elif key not in (MARK, "type"):
                raise Problem(f"is damaged: its mark holds {shown(key)}")
        return shape.build(parts)


def _problem(error: Exception, step: str = "") -> Exception:
    """What passes on from here: a Problem that knows its way, whatever went wrong inside."""
    if isinstance(error, RecursionError):
        return error
    problem = error if isinstance(error, Problem) else Problem(f"cannot be built again: {error!r:.200}")
    if step:
        problem.trail.append(step)
    return problem


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Problem(f"is nested deeper than {MAX_DEPTH} levels")


def _leaf(tree: Any, depth: int) -> Any:
    return tree


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
