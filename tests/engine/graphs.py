"""For tests of graphs: one whose nodes come one after the other."""

from __future__ import annotations

from typing import Any

from holdfast import Graph

State = dict[str, Any]


def chain(name: str, *names: str, **options: Any) -> tuple[Graph[Any], list[str]]:
    """A graph whose nodes come one after the other, and the list of those that ran."""
    graph, ran = Graph(name, **options), list[str]()

    def node(called: str) -> Any:
        async def body(state: State) -> State:
            ran.append(called)
            return {**state, called: len(ran)}

        return body

    for place, called in enumerate(names):
        graph.node(node(called), name=called, start=place == 0)
        if place:
            graph.edge(names[place - 1], called)
    return graph, ran
