"""State as JSON and back, exactly.

    tree = codec.encode(value)              a tree of what JSON has, or NotStorableError naming the path
    tree = codec.encode(value, like=old)    the same; whatever is exactly as in `old` IS that part of `old`
    value = codec.decode(tree)              a fresh value, or NotLoadableError naming the path

A tree is never changed once it is made, and trees share parts. What JSON has no word for is
written as a mark, a dict with the key "$": {"$": "tuple", "v": [1, 2]}. A type of the program is an
object mark with the type's name beside it, so no name of a user's type is ever taken for a mark of
ours: {"$": "object", "type": "Report", "v": {"title": "x"}}. A dict that has itself a key "$", or
keys that are not strings, is written as pairs: {"$": "dict", "v": [["$", "tuple"], [1, "one"]]}.

Every tree that `encode` gives can be dumped: lone surrogates, NaN and large ints are marks already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from holdfast.core.decoding import Decoder
from holdfast.core.encoding import ABSENT, MAX_DEPTH, Encoder
from holdfast.core.trail import Problem
from holdfast.core.trees import may_hold_marks
from holdfast.core.types import Registry
from holdfast.errors import NotLoadableError, NotStorableError

__all__ = ["MAX_DEPTH", "Codec", "Tree", "canonical", "dumps", "loads", "may_hold_marks"]

Tree: TypeAlias = "bool | int | float | str | list[Tree] | dict[str, Tree] | None"

_ENCODER = msgspec.json.Encoder()
_SORTED = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder()


class Codec:
    """Encodes and decodes values with the types that a program declares. Safe to use from several threads."""

    def __init__(self, types: Iterable[Any] = ()) -> None:
        self._registry = Registry()
        self._encoder = Encoder(self._registry.refuse)
        self._handlers = self._encoder.handlers
        self._decoder = Decoder(self._registry)
        self.register(*types)

    def register(self, *types: Any) -> None:
        """Declare types, or all types in annotations such as `list[Report] | None`, with those of their fields.

        What needs no declaration, or cannot have one, is passed over.

        Raises UsageError when two types have the same name.
        """
        for annotation in types:
            for cls in self._registry.add(annotation):
                self._encoder.add(cls, self._registry.by_type[cls])

    def encode(self, value: Any, *, like: Tree = ABSENT, path: str = "state") -> Tree:
        """The tree of a value. Whatever is exactly as in the tree `like` is that very part of it.

        Raises NotStorableError, which names the path from `path` on, when the value would not come
        back exactly.
        """
        try:
            tree: Tree = self._handlers.get(type(value), self._registry.refuse)(value, like, 1)
            return tree
        except Problem as problem:
            raise NotStorableError(problem.path(path), problem.problem) from problem.__cause__
        except RecursionError:
            raise NotStorableError(path, "is nested too deeply for the stack that is left here") from None
        except RuntimeError as error:  # A dict or set changed its size while it was read.
            raise NotStorableError(path, f"was changed while it was being stored: {error}") from error

    def decode(self, tree: Tree, *, path: str = "state", plain: bool = False, typed: bool = False) -> Any:
        """The value of a tree, in containers of its own: changing it changes no tree.

        `plain` says that the tree holds no marks, which saves looking for them: see `may_hold_marks`. `typed` says that
        it does not come from a store: somebody has just typed it, and is told so when it does not fit.

        Raises NotLoadableError, which names the path from `path` on, when the tree is damaged or does
        not fit the declared types, and never another exception.
        """
        try:
            return msgspec.to_builtins(tree) if plain else self._decoder.value(tree)
        except Problem as problem:
            told = problem.typed if typed else problem.problem
            raise NotLoadableError(problem.path(path), told) from problem.__cause__
        except RecursionError:
            raise NotLoadableError(path, "is nested too deeply for the stack that is left here") from None


def dumps(tree: Tree) -> bytes:
    """The tree as JSON.

    Raises NotStorableError for what no tree of `encode` holds, such as a lone surrogate or an int of
    5,000 digits, and where the stack is nearly used up.
    """
    try:
        return _ENCODER.encode(tree)
    except (ValueError, RecursionError, TypeError) as error:
        raise NotStorableError("state", f"cannot be written as JSON: {error}") from error


def canonical(tree: Tree) -> bytes:
    """The tree as JSON with sorted keys: equal for dicts that differ only in the order of their keys."""
    return _SORTED.encode(tree)


def loads(data: bytes, *, path: str = "state") -> Tree:
    """The tree that JSON holds. Raises NotLoadableError when it is not JSON."""
    try:
        tree: Tree = _DECODER.decode(data)
        return tree
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotLoadableError(path, f"is not JSON that can be read: {error}") from error
