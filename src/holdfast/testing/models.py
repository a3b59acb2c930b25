"""A model that says what it was told to say, for tests and demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Line = str | dict[str, Any] | Callable[[list[dict[str, Any]]], Any]


class ScriptedModel:
    """Answers with the lines of a script, one after the other.

    A line is a text, a message, or a function of the messages so far. Which line comes next is told by how often the
    assistant has spoken in the messages, so it goes on at the right place in another process too, as a real model
    would. `calls` counts how often it was asked in this process.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = list(lines)
        self.calls = 0

    async def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        """The next line."""
        self.calls += 1
        spoken = sum(message["role"] == "assistant" for message in messages)
        if spoken >= len(self._lines):
            raise LookupError(f"the script has {len(self._lines)} lines, and the assistant has spoken {spoken} times")
        line = self._lines[spoken]
        return line(messages) if callable(line) else line


def wants(name: str, /, id: str | None = None, **arguments: Any) -> dict[str, Any]:
    """A message that calls one tool; `id` is the tool's name when it is left out."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id or name, "name": name, "arguments": arguments}],
    }
