"""What a person sees of a run while it goes on: a bar in a terminal, plain lines elsewhere; on stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import IO, Any, Self, TextIO, cast

from holdfast.cli.commentary import Commentary
from holdfast.cli.output import printing, say, shown
from holdfast.flows.base import Flow
from holdfast.flows.pipeline import Pipeline
from holdfast.model import Event

_TEXT = 40


class Watch:
    """Told of every event of a run, it says one line for each that matters."""

    def __init__(self) -> None:
        self.run: str | None = None
        self.went_on_from: str | None = None
        """The checkpoint that this process took the run up at."""
        self._done = 0
        self._total: int | None = None
        self._order: tuple[str, ...] = ()
        """The steps of a pipeline."""
        self._rewound: dict[int | None, int] = {}
        self._inside = Commentary()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def expect(self, run: str | None, done: int, flow: Flow[Any] | None) -> None:
        """Which run of that flow is watched (None: the first that is created), and how far it is."""
        self.run, self._done = run, done
        self._total = None if flow is None else flow.total_steps
        in_order = isinstance(flow, Pipeline) and flow.total_steps == len(flow.step_names)
        self._order = flow.step_names if flow is not None and in_order else ()

    def __call__(self, event: Event) -> None:
        if self.run is None and event.type == "created":
            self.run = event.run
        if event.run != self.run:
            return
        at = event.run if event.seq is None else f"{event.run}@{event.seq}"
        match event.type:
            case "created":
                self._created(event)
            case "rewound":
                self._rewound[event.seq] = event.data["to"]
            case "resumed":
                self._goes_on(event)
            case "step_started":
                self.started(event.step or "")
            case "step_completed":
                self._done = self._before(event.step) + 1
                self._inside.step_done()
                unsaved = ", not yet saved" if event.seq is None else ""
                self.stepped(f"{at}: {shown(event.step)} done ({self.count()}{unsaved})")
            case "step_failed":
                again = "; it is tried again" if "retry_at" in event.data else ""
                self.say(f"{at}: {shown(event.step)} failed: {shown(event.error)}{again}")
            case "save_failed":
                self.say(f"{at}: could not be saved: {shown(event.error)}")
            case _:
                self._comment(event)

    def _before(self, step: str | None) -> int:
        """How many steps are done when that one comes next."""
        # A pipeline finds its place by name: what the store has counted may be the steps of an older program.
        return self._order.index(step) if step in self._order else self._done

    def _comment(self, event: Event) -> None:
        lines = self._inside.lines(event)
        if event.type == "emitted" and event.data.get("name") == "progress":
            self.progressed(lines)
        else:
            for line in lines:
                self.say(line)

    def _created(self, event: Event) -> None:
        origin = event.data.get("from")
        self.say(f"{event.run} started{f' from {shown(origin)}' if origin else ''}")

    def _goes_on(self, event: Event) -> None:
        seq = event.data.get("from")
        self.went_on_from = f"{event.run}@{self._rewound.get(seq, seq)}"
        self._done = self._before(event.step)
        following = f"next step {shown(event.step)} " if event.step else ""
        self.say(f"{event.run} goes on from {self.went_on_from}: {following}({self.count()} done)")

    def count(self) -> str:
        """How many steps are done, of how many."""
        known = self._total is not None and self._done <= self._total
        return f"{self._done} of {self._total}" if known else str(self._done)

    def say(self, line: str) -> None:
        """One line."""
        say(line)

    def started(self, step: str) -> None:
        """A step is under way."""

    def stepped(self, line: str) -> None:
        """A step is done."""
        self.say(line)

    def progressed(self, lines: list[str]) -> None:
        """The step under way has said how far it is; these lines say so."""
        for line in lines:
            self.say(line)


class Bar(Watch):
    """A progress bar with the lines above it, until something else is printed; the lines alone from then on.

    What a step prints may be half a line, which no bar can be drawn under without tearing it.
    """

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._streams = sys.stdout, sys.stderr
        self._console = Console(file=sys.stderr, highlight=False, markup=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=None, count="")
        self._step = ""
        with printing():
            self._bar.start()
        self._screen = Screen(self._bar.stop)
        if sys.stdout.isatty():
            sys.stdout = cast("TextIO", Printing(sys.stdout, self._screen))
        sys.stderr = cast("TextIO", Printing(sys.stderr, self._screen))
        return self

    def __exit__(self, *problem: Any) -> None:
        try:
            with printing():
                self._bar.stop()
                self._screen.end_line(self._console.file)
        finally:
            sys.stdout, sys.stderr = self._streams

    def say(self, line: str) -> None:
        self._screen.end_line(self._console.file)
        self._console.print(line, soft_wrap=True)

    def started(self, step: str) -> None:
        self._step = step
        self._draw()

    def stepped(self, line: str) -> None:
        self._draw()
        self.say(line)

    def progressed(self, lines: list[str]) -> None:
        if self._screen.cleared:  # there is no bar any more to show it
            super().progressed(lines)
        else:
            self._draw()

    def _draw(self) -> None:
        fraction, text = self._inside.fraction, shown(self._inside.text)[:_TEXT]
        done, total = (self._done, self._total) if self._total is not None else (0, 1 if fraction is not None else None)
        self._bar.update(
            self._task,
            description=f"{self.run} {shown(self._step)}",
            completed=done + (fraction or 0.0),
            total=total,
            count=self.count() if fraction is None else f"{self.count()}, {fraction:.0%} {text}".rstrip(),
        )


class Screen:
    """A terminal that a bar is on until somebody else prints."""

    def __init__(self, clear: Callable[[], None]) -> None:
        self._clear: Callable[[], None] | None = clear
        self._lock = threading.Lock()
        self._in_line = False

    @property
    def cleared(self) -> bool:
        """Whether the bar has gone."""
        return self._clear is None

    def clear(self) -> None:
        """Take the bar away for good."""
        with self._lock:  # who comes second waits until it is gone
            clear, self._clear = self._clear, None
            if clear is not None:
                clear()

    def wrote(self, text: str) -> None:
        """Something was printed."""
        if text:
            self._in_line = not text.endswith("\n")

    def end_line(self, stream: IO[str]) -> None:
        """Begin a new line if the last one that was printed has no end."""
        if self._in_line:
            self._in_line = False
            stream.write("\n")


class Printing:
    """A stream whose use clears the screen first."""

    def __init__(self, stream: TextIO, screen: Screen) -> None:
        self._stream, self._screen = stream, screen

    def write(self, text: str) -> int:
        self._screen.clear()
        self._screen.wrote(text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "fileno"):
            self._screen.clear()  # for whoever writes around `write`
        return getattr(self._stream, name)


def watch() -> Watch:
    """What suits where stderr goes."""
    return Bar() if sys.stderr.isatty() else Watch()
