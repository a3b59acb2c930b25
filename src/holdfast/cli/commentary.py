"""What is said of the calls, waits and chunks inside a step while it goes on, without a flood of lines."""

from __future__ import annotations

from typing import Any

from holdfast.cli.accepted import brief
from holdfast.cli.happenings import progress_of, told
from holdfast.cli.output import shown
from holdfast.model import Event

_SINGLY = 10
_TEXTS = 10


class Commentary:
    """Told of every event inside the steps of a run, it gives the lines that are worth saying."""

    def __init__(self) -> None:
        self.fraction: float | None = None
        """How far the step under way says it is."""
        self.text = ""
        self._counts: dict[tuple[str, str], int] = {}
        self._held: list[str] = []
        self._tenth, self._texts = -1, 0

    def step_done(self) -> None:
        """The step under way is done."""
        self.fraction, self.text, self._tenth = None, "", -1

    def lines(self, event: Event) -> list[str]:
        """What to say now. That a wait has begun is said when something else happens before the run is let go."""
        at = shown(event.run if event.seq is None else f"{event.run}@{event.seq}")
        if event.type == "waiting":
            self._held.clear()
            return []
        if event.type == "wait":
            if self._often("wait", str(event.data.get("name"))):
                self._held.append(f"{at}: waits {shown(_awaited(event))}")
            return []
        line = self._chunk(event) if event.type == "emitted" else self._line(event)
        said, self._held = self._held, []
        return said if line is None else [*said, f"{at}: {shown(line)}"]

    def _line(self, event: Event) -> str | None:
        data = event.data
        name = str(data.get("name"))
        match event.type:
            case "call":
                return self._call(event, name)
            case "call_failed":
                return self._counted("failed", name, f"{name} failed: {event.error}; it is tried again")
            case "answer":
                return self._counted("answer", "", f"ask {data.get('ask')} is answered")
            case "received":
                topic = str(data.get("topic"))
                return self._counted("received", topic, f"received a message on {topic!r}")
            case "superseded" | "call_changed" | "calls_unasked":
                return self._counted(event.type, "", told(event))
        return None

    def _call(self, event: Event, name: str) -> str | None:
        data = event.data
        if "run" in data:
            how = f"failed: {event.error}" if event.error else "completed"
            return self._counted(how[:6], "a child", f"child run {data['run']} {how}")
        if event.error:
            return self._counted("failed", name, f"{name} failed: {event.error}")
        if data.get("timed_out"):
            return self._counted("timed out", name, told(event))
        if name == "sleep" and "started" not in data and not data.get("abandoned"):
            return self._counted("slept", "", "its time has come")
        return self._counted("ended", name, f"{name} {told(event)}")

    def _counted(self, kind: str, name: str, line: str) -> str | None:
        number = self._often(kind, name)
        return None if not number else line if number <= _SINGLY else f"{line} ({number} times by now)"

    def _often(self, kind: str, name: str) -> int:
        """How often this has happened, where that is worth a line: each of the first, then at round numbers."""
        self._counts[kind, name] = number = self._counts.get((kind, name), 0) + 1
        return number if number <= _SINGLY or str(number).rstrip("0") in ("1", "2", "5") else 0

    # Streams

    def _chunk(self, event: Event) -> str | None:
        name, data = str(event.data.get("name")), event.data.get("data")
        if name == "progress" and isinstance(data, dict) and isinstance(data.get("fraction"), int | float):
            return self._progress(data)
        self._counts["chunk", name] = number = self._counts.get(("chunk", name), 0) + 1
        if number == 1:
            return f"{name}: {brief(data, 60)}"
        return f"{number} chunks of {name}" if str(number).rstrip("0") == "1" else None

    def _progress(self, data: dict[str, Any]) -> str | None:
        """A line for every tenth of the way, and for the first texts in between."""
        self.fraction, before, self.text = float(data["fraction"]), self.text, str(data.get("text") or "")
        tenth = int(self.fraction * 10)
        if self.text != before:
            self._texts += 1
        news = self.text != before and self._texts <= _TEXTS
        if tenth == self._tenth and not news:
            return None
        self._tenth = tenth
        return progress_of(data)


def _awaited(event: Event) -> str:
    match event.data.get("wait"):
        case "child":
            return f"for child run {event.data.get('run')}"
        case "receive":
            return f"{told(event)} on {str(event.data.get('topic'))!r}"
    return told(event)
