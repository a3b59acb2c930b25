"""The change from one tree to another, as a list of operations that a person can read.

    ["set", path, value]               put a value there; a new key of a dict comes last, [] is the whole tree
    ["del", path]                      remove a key of a dict
    ["append", path, items or text]    lengthen a list or a string
    ["splice", path, at, cut, items]   in a list, put `items` in the place of `cut` items from `at` on
    ["recall", path, seq]              put there what the call in the entry `seq` gave: it is not written twice

A path is a list of keys and indexes. `diff` passes over what is the same object in both trees, so its
cost is that of the change when the new tree shares its unchanged parts (see Codec.encode).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress, count
from operator import is_, is_not
from typing import TYPE_CHECKING, Any

from holdfast.core.trees import same

if TYPE_CHECKING:
    from holdfast.core.codec import Tree

_WORTH_APPENDING = 16  # Characters; below that the text is as short as the operation.
_TRIES = 8  # Places in a list at which a window may go on; more would be guessing.
_MAX_PATH = 60  # What is changed further down is written whole: nobody reads such a path, and the stack has an end.


class DeltaError(ValueError):
    """An operation does not fit the tree, so one of the two is damaged."""


def diff(old: Tree, new: Tree) -> list[Any]:
    """The operations that turn `old` into exactly `new`: types, signs and the order of keys included.

    The operations hold parts of `new` itself.
    """
    ops: list[Any] = []
    if type(old) is type(new) is dict:
        _diff_dict(old, new, [], ops)
    elif old is not new:
        _diff(old, new, [], ops)
    return ops


def apply(tree: Tree, ops: Any, recall: Callable[[Any], Tree] | None = None) -> Tree:
    """The tree after the operations. Changes `tree` in place and keeps parts of `ops` in it.

    `recall` gives what the call in an entry gave; it raises KeyError when there is none.

    Raises DeltaError when an operation does not fit; the tree is then of no more use.
    """
    holder: list[Any] = [tree]
    for index, op in enumerate(_exactly_list(ops)):
        try:
            name, path, *rest = _exactly_list(op)
            if name == "recall" and recall is not None:
                name, rest = "set", [recall(*rest)]
            _APPLY[name](holder, [0, *_exactly_list(path)], *rest)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DeltaError(f"operation {index} of the change does not fit the state: {error!r:.200}") from error
    result: Tree = holder[0]
    return result


def _diff(old: Any, new: Any, path: list[Any], ops: list[Any]) -> None:
    kind = type(new)
    if kind is type(old) and len(path) <= _MAX_PATH:
        if kind is dict:
            return _diff_dict(old, new, path, ops)
        if kind is list:
            return _diff_list(old, new, path, ops)
        if kind is str and len(old) >= _WORTH_APPENDING and new.startswith(old) and new != old:
            ops.append(["append", path, new[len(old) :]])
            return None
    if not same(old, new):
        ops.append(["set", path, new])
    return None


def _diff_dict(old: dict[str, Any], new: dict[str, Any], path: list[Any], ops: list[Any]) -> None:
    start = len(ops)
    if list(old) == list(new):  # most dicts keep their keys
        for key, before in old.items():
            after = new[key]
            if before is not after:
                _diff(before, after, [*path, key], ops)
        if len(ops) - start > 1 and _direct(ops, start, path) == len(old):
            ops[start:] = [["set", path, new]]  # nothing of the old one is left
        return
    kept = [key for key in old if key in new]
    if list(new)[: len(kept)] != kept:  # The order cannot be had by removing and adding at the end.
        ops.append(["set", path, new])
        return
    ops.extend(["del", [*path, key]] for key in old if key not in new)
    for key in kept:
        before, after = old[key], new[key]
        if before is not after:
            _diff(before, after, [*path, key], ops)
    replaced = len(ops)
    if len(new) > len(kept):
        ops.extend(["set", [*path, key], new[key]] for key in list(new)[len(kept) :])
    if len(ops) - start > 1 and replaced - start >= len(old) and _direct(ops[:replaced], start, path) == len(old):
        ops[start:] = [["set", path, new]]  # nothing of the old one is left


def _diff_list(old: list[Any], new: list[Any], path: list[Any], ops: list[Any]) -> None:
    if len(new) > len(old) and all(map(is_, old, new)):
        ops.append(["append", path, new[len(old) :]])  # what most lists do, told at once
        return
    head = _common(old, new)
    tail = 0 if head == min(len(old), len(new)) else _common(old[head:][::-1], new[head:][::-1])
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    cut = _moved_on(gone, come)
    if cut:
        ops.append(["splice", path, head, cut, []])
        _insert(path, head + len(gone) - cut, come[len(gone) - cut :], len(old) - cut, ops)
        return
    start, pairs = len(ops), min(len(gone), len(come))
    for at in range(pairs):
        _diff(gone[at], come[at], [*path, head + at], ops)
    nothing_left = _direct(ops, start, path) == len(gone)
    if nothing_left and len(gone) + len(come) > 2:
        ops[start:] = [["splice", path, head, len(gone), come]]
    elif len(gone) > pairs:
        ops.append(["splice", path, head + pairs, len(gone) - pairs, []])
    else:
        _insert(path, head + pairs, come[pairs:], len(old), ops)


def _insert(path: list[Any], at: int, items: list[Any], length: int, ops: list[Any]) -> None:
    if items:
        ops.append(["append", path, items] if at == length else ["splice", path, at, 0, items])


def _direct(ops: list[Any], start: int, path: list[Any]) -> int:
    """How many children were replaced or removed whole; -1 when something was done deeper down."""
    deep = any(len(op[1]) != len(path) + 1 or op[0] not in ("set", "del") for op in ops[start:])
    return -1 if deep else len(ops) - start


def _common(old: list[Any], new: list[Any]) -> int:
    """How many items are exactly the same from the beginning on."""
    for at in compress(count(), map(is_not, old, new)):
        if not same(old[at], new[at]):
            return at
    return min(len(old), len(new))


def _moved_on(old: list[Any], new: list[Any]) -> int:
    """How many items were cut at the beginning, when all others are where `new` begins; 0 when not so."""
    tries = 0
    for cut in range(max(1, len(old) - len(new)), len(old)):
        if new and same(old[cut], new[0]):
            if _common(old[cut:], new) == len(old) - cut:
                return cut
            tries += 1
            if tries == _TRIES:
                break
    return 0


def _exactly_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise DeltaError("a list is expected")
    return value


def _at(node: Any, step: Any) -> Any:
    """What lies one step further."""
    fits = type(step) is str if type(node) is dict else type(node) is list and type(step) is int and step >= 0
    if not fits:
        raise DeltaError("its path does not exist")
    return node[step]


def _parent(holder: list[Any], path: list[Any]) -> Any:
    node: Any = holder
    for step in path[:-1]:
        node = _at(node, step)
    return node


def _apply_set(holder: list[Any], path: list[Any], value: Any) -> None:
    parent, last = _parent(holder, path), path[-1]
    if type(parent) is not dict or type(last) is not str:
        _at(parent, last)
    parent[last] = value


def _apply_del(holder: list[Any], path: list[Any]) -> None:
    parent = _parent(holder, path)
    if type(parent) is not dict:
        raise DeltaError("only a key of a dict can be removed")
    del parent[path[-1]]


def _apply_append(holder: list[Any], path: list[Any], more: Any) -> None:
    parent, last = _parent(holder, path), path[-1]
    target = _at(parent, last)
    if type(target) is not type(more) or type(more) not in (str, list):
        raise DeltaError("only a list can be appended to a list, and text to text")
    if type(more) is str:
        parent[last] = target + more
    else:
        target.extend(more)


def _apply_splice(holder: list[Any], path: list[Any], at: Any, cut: Any, items: Any) -> None:
    target = _at(_parent(holder, path), path[-1])
    if not (type(target) is list and type(items) is list and type(at) is int and type(cut) is int):
        raise DeltaError("a splice needs a list, a place, a number and items")
    if at < 0 or cut < 0 or at + cut > len(target):
        raise DeltaError("the items that it takes out do not exist")
    target[at : at + cut] = items


_APPLY: dict[str, Callable[..., None]] = {
    "set": _apply_set,
    "del": _apply_del,
    "append": _apply_append,
    "splice": _apply_splice,
}
