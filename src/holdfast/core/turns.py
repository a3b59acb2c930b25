"""Whose turn it is: which of the runs that could be claimed a worker gets.

Fair between queues: the next run comes from the queue of which the fewest runs are under way, wherever that
is. Within a queue the higher priority goes first, and the older run among equals. What would exceed a limit is
passed over and takes nobody's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from heapq import heapify, heappop, heapreplace
from typing import Protocol, TypeVar

from holdfast.model import Limit


class Queued(Protocol):
    """What must be known of a run to give it its turn."""

    @property
    def id(self) -> str: ...
    @property
    def flow(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def created_at(self) -> float: ...


Q = TypeVar("Q", bound=Queued)


def in_turn(candidates: Iterable[Q], under_way: Iterable[Queued], limits: Iterable[Limit], most: int) -> list[Q]:
    """At most so many of the candidates, in the order of their turns.

    `under_way` are the runs that a live owner has, of all queues and flows; candidates among them do not count twice.
    """
    chosen = first_in_turn(candidates, under_way, limits, most, frozenset())
    assert chosen is not None
    return chosen


def first_in_turn(
    candidates: Iterable[Q], under_way: Iterable[Queued], limits: Iterable[Limit], most: int, cut: Container[str]
) -> list[Q] | None:
    """The same when only the first candidates of the queues in `cut` are known; None when more must be known."""
    lines: dict[str, list[Q]] = {}
    for one in sorted(candidates, key=rank, reverse=True):
        lines.setdefault(one.queue, []).append(one)  # whose turn comes first stands last
    waiting = {one.id for line in lines.values() for one in line}
    others = [one for one in under_way if one.id not in waiting]
    room = _Room(limits, others)
    busy = Counter(one.queue for one in others)
    heads = [(busy[queue], rank(line[-1]), queue) for queue, line in lines.items()]
    heapify(heads)
    chosen: list[Q] = []
    while heads and len(chosen) < most:
        taken, _, queue = heads[0]
        one = lines[queue].pop()
        if room.take(one):
            chosen.append(one)
            taken += 1
        if lines[queue]:
            heapreplace(heads, (taken, rank(lines[queue][-1]), queue))
        elif queue in cut and len(chosen) < most:
            return None
        else:
            heappop(heads)
    return chosen


def reached(under_way: Iterable[Queued], limits: Iterable[Limit]) -> tuple[set[str], set[tuple[str, str]]]:
    """The flows of which no run, and the (flow, key) of which none with that key, may be taken now.

    For stores that look at the first runs of a queue only: these must not stand in the way of the others.
    """
    room = _Room(limits, under_way)
    return room.full_flows(), room.full_keys()


def rank(one: Queued) -> tuple[int, float, str]:
    """Where a run stands in its queue: the least goes first."""
    return -one.priority, one.created_at, one.id


class _Room:
    """How many more runs of each flow, and of each key of it, may be taken."""

    def __init__(self, limits: Iterable[Limit], under_way: Iterable[Queued]) -> None:
        self._limits = {limit.flow: limit for limit in limits}
        self._taken: Counter[tuple[str, str | None]] = Counter()
        for one in under_way:
            self._count(one)

    def take(self, one: Queued) -> bool:
        """Whether there is room for this run, which takes it."""
        if self._is_full(one.flow, None) or (one.key is not None and self._is_full(one.flow, one.key)):
            return False
        self._count(one)
        return True

    def _is_full(self, flow: str, key: str | None) -> bool:
        limit = self._limits.get(flow)
        most = None if limit is None else limit.most if key is None else limit.most_per_key
        return most is not None and self._taken[flow, key] >= most

    def full_flows(self) -> set[str]:
        """The flows at their limit."""
        return {flow for flow in self._limits if self._is_full(flow, None)}

    def full_keys(self) -> set[tuple[str, str]]:
        """The (flow, key) at their limit."""
        return {(flow, key) for flow, key in list(self._taken) if key is not None and self._is_full(flow, key)}

    def _count(self, one: Queued) -> None:
        self._taken[one.flow, None] += 1
        if one.key is not None:
            self._taken[one.flow, one.key] += 1
