"""Chat messages in the form that every provider speaks: a role, content, tool calls with ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_TEXT = (str, list, type(None))


class Nonsense(Exception):
    """A model's answer is no message; says why."""


class ToolCall(msgspec.Struct, frozen=True):
    """A tool that the model wants called."""

    id: str
    name: str
    arguments: Any
    """As the model wrote them: an object, or the JSON text of one."""


def as_message(value: Any) -> dict[str, Any]:
    """An assistant's message made of what a model returned: a text, a message, or an object that has one."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        value = dump(exclude_none=True)
    if isinstance(value, str):
        return {"role": "assistant", "content": value}
    if not isinstance(value, Mapping):
        raise Nonsense(f"{type(value).__name__} {ascii(value)[:80]}, which is no message")
    message = {"role": "assistant", **value}
    if message["role"] != "assistant":
        raise Nonsense(f"a message of role {ascii(message['role'])[:40]}; a model speaks as 'assistant'")
    if not isinstance(message.get("content"), _TEXT):
        raise Nonsense(f"content of type {type(message['content']).__name__}, which is no text")
    if message.get("content") is None and not message.get("tool_calls"):
        raise Nonsense("a message that has neither content nor tool calls")
    return message


def tool_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """The tool calls of a message, in the flat form and in the nested one ("function")."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Nonsense(f"tool_calls of type {type(calls).__name__}, which is no list")
    found = [_tool_call(place, call) for place, call in enumerate(calls)]
    ids = [call.id for call in found]
    doubled = sorted({one for one in ids if ids.count(one) > 1})
    if doubled:
        raise Nonsense(f"two tool calls of the same id: {', '.join(doubled)}")
    return found


def _tool_call(place: int, call: Any) -> ToolCall:
    if not isinstance(call, Mapping):
        raise Nonsense(f"tool call {place + 1}, which is no object: {ascii(call)[:80]}")
    nested = call.get("function")
    inner = nested if isinstance(nested, Mapping) else call
    name, arguments = inner.get("name"), inner.get("arguments", inner.get("input"))
    if type(name) is not str or not name:
        raise Nonsense(f"tool call {place + 1} without a name: {ascii(dict(call))[:80]}")
    given = call.get("id")
    return ToolCall(given if type(given) is str and given else f"call-{place + 1}", name, arguments)


class Gathered:
    """A message that comes in chunks: texts, or parts of a message, or the whole one at the end."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._parts: dict[str, Any] = {}

    def add(self, chunk: Any) -> None:
        """One more chunk."""
        dump = getattr(chunk, "model_dump", None)
        chunk = chunk if dump is None else dump(exclude_none=True)
        if isinstance(chunk, str):
            self._text.append(chunk)
        elif isinstance(chunk, Mapping):
            if "role" in chunk and (chunk.get("content") is not None or chunk.get("tool_calls")):
                self._text.clear()  # the whole message
            self._take(chunk)
        else:
            raise Nonsense(f"a chunk of type {type(chunk).__name__}")

    def _take(self, part: Mapping[str, Any]) -> None:
        for name, value in part.items():
            if name == "content" and isinstance(value, str):
                self._text.append(value)
            elif isinstance(value, list) and isinstance(self._parts.get(name), list):
                self._parts[name] = [*self._parts[name], *value]
            elif value is not None:
                self._parts[name] = value

    def message(self) -> dict[str, Any]:
        """All of it."""
        content = "".join(self._text) if self._text else self._parts.get("content")
        return as_message({**self._parts, "content": content})
