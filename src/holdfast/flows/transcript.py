"""The state of an agent while it grows: what is appended is also told as the change that it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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
        self._stored: list[Any] = []
        """The new messages as they are stored."""
        self._written: list[Any] = []
        """The same as the change says them: without what it recalls."""
        self._change: list[Any] = []
        stored, before = scope.memo.get("messages", (None, None))
        if stored is not state["messages"]:
            before = scope.decode(state["messages"], "state.messages")
        self._before: list[dict[str, Any]] = before
        self._new: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._before) + len(self._new)

    def after(self, first: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """These and all of its own, in a list of its own. The messages themselves are not to be changed."""
        return [*first, *self._before, *self._new]

    def backwards(self) -> Iterator[dict[str, Any]]:
        """All of them from the last one on."""
        return itertools.chain(reversed(self._new), reversed(self._before))

    def say(self, message: dict[str, Any], seq: int | None = None) -> None:
        """Append a message; when it is all that the call in the entry `seq` gave, it is not written again."""
        tree, place = self._encoded(message), len(self)
        self._append(tree, tree if seq is None else None)
        if seq is not None:
            self._change.append(["recall", ["messages", place], seq])

    def answer(self, call: ToolCall, text: str, seq: int | None) -> None:
        """Append what a tool call gave; what the entry `seq` holds is not written again."""
        message = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
        if seq is None or len(text) < _WORTH_RECALLING:
            self.say(message)
            return
        tree, place = self._encoded(message), len(self)
        # Its last key, so that putting it there gives the message as it is.
        self._append(tree, {key: value for key, value in tree.items() if key != "content"})
        self._change.append(["recall", ["messages", place, "content"], seq])

    def _encoded(self, message: dict[str, Any]) -> Any:
        return self._scope.encode(message, f"state.messages[{len(self)}]")

    def _append(self, tree: Any, written: Any) -> None:
        self._new.append(self._scope.decode(tree, f"state.messages[{len(self)}]"))
        self._stored.append(tree)
        self._written.append(written)

    def put(self, name: str, value: Any) -> None:
        """Replace something else of the state."""
        tree = self._scope.encode(value, f"state.{name}")
        self.state = {**self.state, name: tree}
        self._change.append(["set", [name], tree])

    def position(self, cursor: dict[str, Any]) -> Position:
        """Where the run has come to; nothing is added after this."""
        stored = [*self.state["messages"], *self._stored]
        # Lengthened in place: whoever comes with another state than this one builds its messages anew.
        self._before += self._new
        self._scope.memo["messages"] = (stored, self._before)
        appended = [["append", ["messages"], self._written]] if self._written else []
        return Position({**self.state, "messages": stored}, cursor, change=[*appended, *self._change])
