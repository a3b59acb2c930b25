"""The state of an agent while it grows: what is appended is also told as the change that it is."""

from __future__ import annotations

from typing import Any

from holdfast.context import Scope
from holdfast.flows.base import Position
from holdfast.flows.messages import ToolCall

_WORTH_RECALLING = 64


class Transcript:
    """One step's view of the state.

    The messages that a model sees are kept in memory from turn to turn; building all of them anew for each
    would make every turn cost as much as the whole conversation.
    """

    def __init__(self, state: dict[str, Any], scope: Scope) -> None:
        self.state, self._scope = state, scope
        self._change: list[Any] = []
        self._new: list[Any] = []
        stored, messages = scope.memo.get("messages", (None, None))
        if stored is not state["messages"]:
            messages = scope.decode(state["messages"], "messages")
        self.messages: list[dict[str, Any]] = list(messages)
        """All of them, for whoever reads; a list of its own."""

    def say(self, message: dict[str, Any]) -> None:
        """Append a message."""
        tree = self._scope.encode(message, f"messages[{len(self.messages)}]")
        self._append(tree, tree)

    def answer(self, call: ToolCall, text: str, seq: int | None) -> None:
        """Append what a tool call gave; what the entry `seq` holds is not written again."""
        place = len(self.messages)
        message = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
        if seq is None or len(text) < _WORTH_RECALLING:
            self.say(message)
            return
        self._append(message, {**message, "content": None})
        self._change.append(["recall", ["messages", place, "content"], seq])

    def _append(self, tree: Any, written: Any) -> None:
        self.messages.append(self._scope.decode(tree, f"messages[{len(self.messages)}]"))
        self._new.append(tree)
        if self._change and self._change[0][0] == "append":
            self._change[0][2].append(written)
        else:
            self._change.insert(0, ["append", ["messages"], [written]])

    def put(self, name: str, value: Any) -> None:
        """Replace something else of the state."""
        tree = self._scope.encode(value, name)
        self.state = {**self.state, name: tree}
        self._change.append(["set", [name], tree])

    def position(self, cursor: dict[str, Any]) -> Position:
        """Where the run has come to."""
        stored = [*self.state["messages"], *self._new]
        self._scope.memo["messages"] = (stored, self.messages)
        return Position({**self.state, "messages": stored}, cursor, change=self._change)
