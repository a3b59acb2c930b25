"""A graph as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.flows.edges import Edges

_SHAPES = {
    "box": ('["', '"]'),
    "subroutine": ('[["', '"]]'),
    "parallel": ('[/"', '"/]'),
    "human": ('[\\"', '"\\]'),
}


def mermaid(start: str, nodes: Iterable[Any], edges: Edges) -> str:
    """The flowchart, from its start to the nodes that end it; where a node goes by itself is dotted."""
    nodes = list(nodes)
    ids = {node.name: f"n{place}" for place, node in enumerate(nodes)}
    lines = ["flowchart TD", f'    start(["start"]) --> {ids[start]}']
    for node in nodes:
        left, right = _SHAPES[node.shape]
        lines.append(f"    {ids[node.name]}{left}{_text(node.name)}{right}")
    for source, way in edges.ways.items():
        for label, target in way.targets.items():
            arrow = "-->" if way.chooser is None else f'-->|"{_text(label)}"|'
            lines.append(f"    {ids[source]} {arrow} {ids[target]}")
    for source, names in edges.gotos.items():
        lines += [f"    {ids[source]} -.-> {ids[name]}" for name in names]
    for node in nodes:
        if node.name not in edges.ways:
            lines.append(f'    {ids[node.name]} --> finish(["end"])')
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    """What is shown as it is, whatever signs it holds."""
    return "".join(char if char.isalnum() or char in " _-.,:" else f"#{ord(char)};" for char in str(value))
