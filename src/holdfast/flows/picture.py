"""A graph as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_SHAPES = {
    "box": ('["', '"]'),
    "subroutine": ('[["', '"]]'),
    "parallel": ('[/"', '"/]'),
    "human": ('[\\"', '"\\]'),
}


def mermaid(
    start: str,
    nodes: Iterable[Any],
    edges: Mapping[str, str],
    choices: Mapping[str, Mapping[Any, str]],
    gotos: Mapping[str, list[str]],
) -> str:
    """The flowchart, from its start to the nodes that end it; what a node goes to by itself is dotted."""
    nodes = list(nodes)
    ids = {node.name: f"n{place}" for place, node in enumerate(nodes)}
    lines = ["flowchart TD", f"    start([start]) --> {ids[start]}"]
    for node in nodes:
        left, right = _SHAPES[node.shape]
        lines.append(f"    {ids[node.name]}{left}{_text(node.name)}{right}")
    for source, target in edges.items():
        lines.append(f"    {ids[source]} --> {ids[target]}")
    for source, targets in choices.items():
        for label, target in targets.items():
            lines.append(f'    {ids[source]} -->|"{_text(label)}"| {ids[target]}')
    for source, names in gotos.items():
        lines += [f"    {ids[source]} -.-> {ids[name]}" for name in names]
    for node in nodes:
        if node.name not in edges and node.name not in choices:
            lines.append(f"    {ids[node.name]} --> finish([end])")
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    """What is shown as it is, whatever signs it holds."""
    return "".join(char if char.isalnum() or char in " _-.,:" else f"#{ord(char)};" for char in str(value))
