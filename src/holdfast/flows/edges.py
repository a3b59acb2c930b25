"""The ways between the nodes of a graph, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.flows.moves import target_name

Chooser = Callable[[Any], Any]


class Way(NamedTuple):
    """What comes after a node: the one target, or that of the label that `chooser(state)` gives."""

    chooser: Chooser | None
    targets: dict[Any, str]


class Edges:
    """Edges, branches and announced Gotos. Nodes may be declared before or after them."""

    def __init__(self) -> None:
        self._declared: list[tuple[str, Way]] = []
        self._announced: list[tuple[str, list[str]]] = []
        self._also: dict[str, set[str]] = {}
        self.ways: dict[str, Way] = {}
        """By node: what comes after it, once they have been joined."""
        self.gotos: dict[str, list[str]] = {}
        """By node: where it goes by itself, once they have been joined."""

    def add(self, source: Any, chooser: Chooser | None, targets: Mapping[Any, Any]) -> None:
        """After `source` comes one of these."""
        way = Way(chooser, {label: target_name(target) for label, target in targets.items()})
        self._declared.append((target_name(source), way))

    def announce(self, source: str, targets: Iterable[Any]) -> None:
        """`source` goes to these by itself."""
        self._announced.append((source, [target_name(target) for target in targets]))

    def also_called(self, given: Any, node: str) -> None:
        """What was made a node may be named in its place, whatever name the node has."""
        self._also.setdefault(target_name(given), set()).add(node)

    def name(self, target: Any, known: Collection[str]) -> str:
        """The name of the node that is meant."""
        name = target_name(target)
        meant = self._also.get(name, set())
        return next(iter(meant)) if name not in known and len(meant) == 1 else name

    def join(self, known: Collection[str]) -> list[str]:
        """Join the ways of these nodes. What is wrong with them."""
        self.ways, self.gotos, problems = {}, {}, list[str]()
        for given, way in self._declared:
            source = self.name(given, known)
            if source in self.ways:
                problems.append(f"node {source!r} has two ways out: use one graph.branch to choose between them")
            if source not in known:
                problems.append(f"an edge begins at {source!r}, which is no node")
            if not way.targets:
                problems.append(f"the branch at {source!r} has no targets")
            self.ways[source] = Way(way.chooser, {label: self.name(to, known) for label, to in way.targets.items()})
            problems += self._lost(f"the edge from {source!r} leads to", self.ways[source].targets.values(), known)
        for source, targets in self._announced:
            self.gotos[source] = [self.name(target, known) for target in targets]
            problems += self._lost(f"goto= of node {source!r} names", self.gotos[source], known)
        return problems

    def _lost(self, what: str, targets: Iterable[str], known: Collection[str]) -> list[str]:
        return [f"{what} {target!r}, which is no node" for target in targets if target not in known]

    def reached(self, starts: Iterable[str]) -> set[str]:
        """The nodes that some way leads to from there."""
        reached, to_visit = set[str](), list(starts)
        while to_visit:
            name = to_visit.pop()
            if name not in reached:
                reached.add(name)
                to_visit += self.ways[name].targets.values() if name in self.ways else ()
                to_visit += self.gotos.get(name, [])
        return reached
