"""Whether values are still what an earlier tree says, found by identity of leaves at C speed.

A step gets a copy of the state in which the containers are new and the leaves are those of the
tree. So whatever the step did not touch still has the same leaves, and looking whether two objects
are the same one costs a hundredth of encoding them. Only identity counts here, never `==`: 1 equals
True and 1.0, 0.0 equals -0.0, and a user's `__eq__` may say anything.

All containers of one depth are looked at together, because a function call for each would cost more
than the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, compress, repeat
from operator import contains, is_, is_not
from typing import Any

MARK = "$"
"""The key by which a dict in a tree is known as a type mark; plain data under it is stored as pairs."""

_flat = chain.from_iterable
_values = dict.values


def unchanged(news: Sequence[Any], olds: Sequence[Any]) -> bool:
    """True when each of `news` would be encoded to exactly the tree at the same place in `olds`.

    Both have the same length. False means only that it is not certain: marks, for instance, are
    never looked into. What it costs is bounded by the size of `olds`.
    """
    while True:
        flags = list(map(is_not, news, olds))
        if True not in flags:
            return True
        news, olds = list(compress(news, flags)), list(compress(olds, flags))
        if _all_are(news, dict):
            if not _all_are(olds, dict) or not _same_keys(news, olds):
                return False
            news, olds = list(_flat(map(_values, news))), list(_flat(map(_values, olds)))
        elif _all_are(news, list):
            if not _all_are(olds, list) or not _same_lengths(news, olds):
                return False
            news, olds = list(_flat(news)), list(_flat(olds))
        else:
            return _unchanged_mixed(news, olds)


def is_plain(tree: Any, limit: int) -> bool:
    """Whether the tree holds no marks, so that a bare copy of it is its value.

    False as well when it is nested deeper than `limit`.
    """
    level = [tree]
    for _ in range(limit + 1):
        dicts = [node for node in level if type(node) is dict]
        lists = [node for node in level if type(node) is list]
        if True in map(contains, dicts, repeat(MARK)):
            return False
        level = [*_flat(map(_values, dicts)), *_flat(lists)]
        if {dict, list}.isdisjoint(map(type, level)):
            return True
    return False


def _unchanged_mixed(news: list[Any], olds: list[Any]) -> bool:
    """The same for dicts and lists side by side, each kind by itself."""
    is_dict = [type(new) is dict for new in news]
    if True not in is_dict or not all(type(new) is dict or type(new) is list for new in news):
        return False
    is_list = [not flag for flag in is_dict]
    return unchanged(list(compress(news, is_dict)), list(compress(olds, is_dict))) and unchanged(
        list(compress(news, is_list)), list(compress(olds, is_list))
    )


def _all_are(values: Sequence[Any], kind: type) -> bool:
    return all(map(is_, map(type, values), repeat(kind)))


def _same_lengths(news: Sequence[Any], olds: Sequence[Any]) -> bool:
    return list(map(len, news)) == list(map(len, olds))


def _same_keys(news: Sequence[dict[Any, Any]], olds: Sequence[dict[str, Any]]) -> bool:
    """The same keys in the same order, and no marks: a user's dict may look like a mark and is not one."""
    return (
        _same_lengths(news, olds)
        and all(map(is_, _flat(news), _flat(olds)))
        and True not in map(contains, olds, repeat(MARK))
    )
