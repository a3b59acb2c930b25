"""What a question takes as its answer, on one line: JSON Schema for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_MOST = 160
_CHOICES = 8
_DEEP = 8
_TYPES = {"boolean": "true or false", "null": "null", "object": "an object", "array": "a list"}
_SIMPLE = {"string": "a text", "integer": "a whole number", "number": "a number"}
_BOUNDS = (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))


def in_short(schema: Any) -> str:
    """What fits the schema, as far as a line can say it; never raises, whatever a store holds as a schema."""
    return _cut("anything" if schema is None else _Reading(schema).of(schema))


def brief(value: Any, most: int = _MOST) -> str:
    """A stored value as JSON on one line, cut where it is long."""
    return _cut(json.dumps(value, ensure_ascii=False), most)


def _cut(text: str, most: int = _MOST) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


class _Reading:
    def __init__(self, root: Any) -> None:
        defined = root.get("$defs") if isinstance(root, dict) else None
        self._defined: dict[str, Any] = defined if isinstance(defined, dict) else {}

    def of(self, schema: Any, depth: int = 0) -> str:
        if not isinstance(schema, dict) or depth > _DEEP:
            return "..." if depth > _DEEP else "anything"
        if "const" in schema:
            return brief(schema["const"])
        if isinstance(schema.get("enum"), list):
            return _either(brief(choice) for choice in schema["enum"])
        for choices in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(choices, list):
                return _either(self.of(choice, depth + 1) for choice in choices)
        if isinstance(schema.get("$ref"), str):
            return self.of(self._defined.get(schema["$ref"].rpartition("/")[2]), depth + 1)
        kinds = schema.get("type")
        return _either(self._typed(kind, schema, depth) for kind in (kinds if isinstance(kinds, list) else [kinds]))

    def _typed(self, kind: Any, schema: dict[str, Any], depth: int) -> str:
        if kind == "array" and isinstance(schema.get("items"), dict):
            return f"[{self.of(schema['items'], depth + 1)}, ...]"
        if isinstance(schema.get("properties"), dict) and kind in ("object", None) and schema["properties"]:
            return self._object(schema, depth)
        if not isinstance(kind, str):
            return "anything"
        if kind in _SIMPLE:
            bounds = [f" {word} {brief(schema[name])}" for name, word in _BOUNDS if name in schema]
            form = f" ({brief(schema['format'])[1:-1]})" if isinstance(schema.get("format"), str) else ""
            return f"{_SIMPLE[kind]}{''.join(bounds)}{form}"
        return _TYPES.get(kind, "anything")

    def _object(self, schema: dict[str, Any], depth: int) -> str:
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        fields = [
            f"{json.dumps(name, ensure_ascii=False)}{'' if name in needed else '?'}: {self.of(inner, depth + 1)}"
            for name, inner in schema["properties"].items()
        ]
        return "{" + ", ".join(fields) + "}"


def _either(choices: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(choices))
    return " or ".join(distinct[:_CHOICES]) + (" or ..." if len(distinct) > _CHOICES else "")
