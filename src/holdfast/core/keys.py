"""The keys by which what was done inside a step is found again.

    key     = scope + name + occurrence in that scope         0/fetch:1     0/fetch=page-7
              of a step that is journaled as a whole          0/fetch
    scope   = the body of a step                              0/
              a task started in it, named by its first call   0/fetch(5f2a90c1)/     0/fetch(=page-7)/
              the function of a call                          0/fetch:1/

The body is named by its step's number, so that a step whose save was skipped by policy finds its own calls
again. A task is named by the name and the arguments of its first call, so that gathered branches find
their own results in whatever order they start or end.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

from holdfast.core.codec import Tree, canonical

_SIGNS = re.compile(r"[%/:=(+]")


class Names:
    """The keys that one scope has given out."""

    __slots__ = ("_branches", "_counts")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._branches: dict[str, Any] = {}

    def key(self, name: str, chosen: str | None) -> str | None:
        """The key of the next call of that name, or with that chosen key; None when that one is taken."""
        name = _plain(name)
        if chosen is None:
            self._counts[name] = count = self._counts.get(name, 0) + 1
            return f"{name}:{count}"
        key = f"{name}={_plain(chosen)}"
        if key in self._counts:
            return None
        self._counts[key] = 1
        return key

    def upcoming(self, name: str) -> str:
        """The key that the next call of that name would get."""
        return f"{_plain(name)}:{self._counts.get(name, 0) + 1}"

    def branch(self, first: str, holder: Any, follows: Any) -> str | None:
        """The name of a task that begins with this call; None when another task has it.

        `follows(other)` tells whether this task was started after that one had ended: then it is the next
        one of that name. Tasks that may overlap could change places from one attempt to the next.
        """
        other = self._branches.setdefault(first, holder)
        if other is holder:
            return first
        if not follows(other):
            return None
        self._branches[first] = holder
        self._counts[first] = count = self._counts.get(first, 1) + 1
        return f"{first}.{count}"


def step_key(step: int, name: str) -> str:
    """The key of a step that is journaled as a whole: no call has such a one."""
    return f"{step}/{_plain(name)}"


def branch_name(name: str, chosen: str | None, args: str | None) -> str | None:
    """What a task is called by its first call; None when neither key nor arguments tell it from others."""
    if chosen is not None:
        return f"{_plain(name)}(={_plain(chosen)})"
    return None if args is None else f"{_plain(name)}({args})"


def named(key: str) -> tuple[str, str]:
    """What a call is called in its step, and its number in its scope; no number for one with a chosen key."""
    name, numbered, number = key.rpartition("/")[2].rpartition(":")
    return f"{key.partition('/')[0]}/{name}", number if numbered and "=" not in name else ""


def _plain(name: str) -> str:
    """The name without the signs that keys are made with, so that no two calls ever have one key."""
    return _SIGNS.sub(lambda sign: f"%{ord(sign[0]):02X}", name)


def digest(tree: Tree) -> str:
    """What tells the arguments of two calls apart."""
    return blake2b(canonical(tree), digest_size=8).hexdigest()
