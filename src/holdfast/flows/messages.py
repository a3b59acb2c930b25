"""Chat messages in the form that every provider speaks: a role, content, tool calls with ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast.core.ids import storable

_TEXT = (str, list, type(None))
_KEY = 120  # Characters: some providers hide much more than a name in an id.


class Nonsense(Exception):
    """A model's answer is no message; says why."""


class ToolCall(msgspec.Struct, frozen=True):
    """A tool that the model wants called."""

    id: str
    name: str
    arguments: Any
    """As the model wrote them: an object, or the JSON text of one."""

    @property
    def key(self) -> str:
        """What the call is journaled by: its id, as far as a key may hold it."""
        if len(self.id) <= _KEY and storable(self.id) == self.id:
            return self.id
        return "id-" + blake2b(self.id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def plain(value: Any) -> Any:
    """The value itself, or the dict of a provider's object."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(exclude_none=True)


def as_message(value: Any) -> dict[str, Any]:
    """An assistant's message made of what a model returned: a text, a message, or an object that has one.

    Raises Nonsense, also for tool calls that could not be made.
    """
    value = plain(value)
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
    tool_calls(message)
    return message


def with_ids(message: dict[str, Any], place: int) -> dict[str, Any]:
    """The message with an id for each tool call that has none: no other call of the transcript has it.

    `place` is where the message stands in the transcript.
    """
    calls = message.get("tool_calls") or []
    if all(call.get("id") for call in calls):
        return message
    named = [{**call, "id": call.get("id") or f"call-{place}-{n}"} for n, call in enumerate(calls, 1)]
    return {**message, "tool_calls": named}


def tool_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """The tool calls of a message, in the flat form and in the nested one ("function"). Raises Nonsense."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Nonsense(f"tool_calls of type {type(calls).__name__}, which is no list")
    found = [_tool_call(place, call) for place, call in enumerate(calls, 1)]
    ids = [call.id for call in found]
    doubled = sorted({one for one in ids if one and ids.count(one) > 1})
    if doubled:
        raise Nonsense(f"two tool calls of the same id: {', '.join(ascii(one)[:80] for one in doubled)}")
    return found


def _tool_call(place: int, call: Any) -> ToolCall:
    if not isinstance(call, Mapping):
        raise Nonsense(f"tool call {place}, which is no object: {ascii(call)[:80]}")
    nested = call.get("function")
    inner = nested if isinstance(nested, Mapping) else call
    name, arguments = inner.get("name"), inner.get("arguments", inner.get("input"))
    if type(name) is not str or not name:
        raise Nonsense(f"tool call {place} without a name: {ascii(dict(call))[:80]}")
    given = call.get("id") or ""
    if type(given) is not str:
        raise Nonsense(f"tool call {place} with an id that is no text: {ascii(given)[:80]}")
    return ToolCall(given, name, arguments)


def unanswered(backwards: Iterable[Mapping[str, Any]]) -> list[ToolCall]:
    """The tool calls at the end of a transcript, which comes from its end, that have no answer yet."""
    answered = set()
    for message in backwards:
        if message["role"] == "tool":
            answered.add(message.get("tool_call_id"))
        else:
            calls = tool_calls(message) if message["role"] == "assistant" else []
            return [call for call in calls if call.id not in answered]
    return []


class Gathered:
    """A message that comes in chunks: texts, or parts of a message, or the whole one at the end.

    A part is a dict of what is new: its text is added to the text so far, its tool calls to the calls; those that
    have an `index` are put together by it, as providers stream them. A message with a role and content (or calls)
    is the whole one, which takes the place of what came before it. Where parts have a role too, that is the one which
    says again all that they said.
    """

    def __init__(self) -> None:
        self._roles = False
        """Whether a part had a role."""
        self._text: list[str] = []
        self._parts: dict[str, Any] = {}
        self._calls: list[Any] = []

    def add(self, chunk: Any) -> None:
        """One more chunk, which is plain."""
        if isinstance(chunk, str):
            self._text.append(chunk)
        elif not isinstance(chunk, Mapping):
            raise Nonsense(f"a chunk of type {type(chunk).__name__}, which is no text and no part of a message")
        else:
            if "role" in chunk and (chunk.get("content") or chunk.get("tool_calls")):
                if not self._roles or self._is_said_in(chunk.get("content")) or self._are_in(chunk.get("tool_calls")):
                    self._text, self._parts, self._calls = [], {}, []
                self._roles = True
            for name, value in chunk.items():
                self._take(name, value)

    def _is_said_in(self, content: Any) -> bool:
        return len(self._text) > 1 and content == "".join(self._text)

    def _are_in(self, calls: Any) -> bool:
        ids = {call.get("id") for call in self._calls if isinstance(call, Mapping)} - {None}
        again = [call.get("id") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
        return bool(ids) and ids <= set(again)

    def _take(self, name: str, value: Any) -> None:
        if name == "content" and isinstance(value, str):
            self._text.append(value)
        elif name == "tool_calls" and isinstance(value, list):
            for part in value:
                self._take_call(part)
        elif isinstance(value, list) and isinstance(self._parts.get(name), list):
            self._parts[name] = [*self._parts[name], *value]
        elif value is not None:
            self._parts[name] = value

    def _take_call(self, part: Any) -> None:
        index = part.get("index") if isinstance(part, Mapping) else None
        if index is None:
            self._calls.append(part)
            return
        indexes = [call.get("index") if isinstance(call, Mapping) else None for call in self._calls]
        if index in indexes:
            place = indexes.index(index)
            self._calls[place] = _joined(self._calls[place], part)
        else:
            self._calls.append(part)

    def message(self) -> dict[str, Any]:
        """All of it, which `as_message` judges."""
        content = "".join(self._text) if self._text else self._parts.get("content")
        calls = [_without_index(call) for call in self._calls]
        return {**self._parts, "content": content, **({"tool_calls": calls} if calls else {})}


def _joined(before: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """A streamed tool call with one more part of it: only its arguments come in pieces."""
    whole = dict(before)
    for name, value in part.items():
        if isinstance(value, Mapping) and isinstance(whole.get(name), Mapping):
            whole[name] = _joined(whole[name], value)
        elif name == "arguments" and isinstance(value, str) and isinstance(whole.get(name), str):
            whole[name] += value
        elif value is not None and value != "":
            whole[name] = value
    return whole


def _without_index(call: Any) -> Any:
    return {name: value for name, value in call.items() if name != "index"} if isinstance(call, Mapping) else call
