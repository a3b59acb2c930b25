"""The commands that only look: ls, show, ledger, doctor."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TypeVar

import click
import msgspec

from holdfast.blocking import Runtime as BlockingRuntime
from holdfast.cli.codes import Exit
from holdfast.cli.explaining import Typed, place_of
from holdfast.cli.happenings import Rows
from holdfast.cli.options import json_option, meta_option, read_meta, read_text, store_option, typed, where
from holdfast.cli.output import as_json, out, pretty_json, print_fields, print_table, say, say_trace, shown, time_of
from holdfast.cli.places import place
from holdfast.cli.waiting import OpenWaits, Wait, with_children
from holdfast.core.ids import check_id, parse_ref
from holdfast.engine.doctor import examine
from holdfast.engine.staff import why_not_taken
from holdfast.errors import NotACheckpointError, ResultExpiredError, RunNotFoundError, StoreDamagedError
from holdfast.model import Call, Checkpoint, Event, Problem, Run, RunStatus, Worker
from holdfast.runtime import Runtime
from holdfast.store.locate import default_location, locate

T = TypeVar("T")


@click.command()
@click.option(
    "--status",
    multiple=True,
    type=click.Choice([status.value for status in RunStatus]),
    help="Only these; may be given several times.",
)
@click.option("--flow", metavar="NAME", multiple=True, help="Only runs of this flow; may be given several times.")
@meta_option("Only runs with this in their metadata.")
@click.option("--limit", metavar="N", type=click.IntRange(0), help="At most so many.")
@store_option
@json_option
def ls(
    status: tuple[str, ...],
    flow: tuple[str, ...],
    meta: tuple[str, ...],
    limit: int | None,
    store: str | None,
    json_: bool,
) -> Exit:
    """List the runs, newest first.

    A table in a terminal; elsewhere a line per run with tabs between id, status, flow, steps, next and the time of
    the last change. --json: one JSON object per line.
    """
    metadata = read_meta(meta)
    with BlockingRuntime(where(store), create=False) as runtime:
        runs = runtime.list(
            status=status or None, flow=[read_text(name) for name in flow] or None, metadata=metadata, limit=limit
        )
        held_up = HeldUp(runtime)
        if json_:
            for run in runs:
                why = held_up.why(run)
                out(as_json(run) if why is None else as_json(msgspec.to_builtins(run) | {"held_up": why}))
        else:
            _print_list(runs, held_up)
    return Exit.OK


def _print_list(runs: Iterator[Run], held_up: HeldUp) -> None:
    first = next(runs, None)
    if first is None:
        say("no runs")
    else:
        columns = ("run", "status", "flow", "steps", "next", "changed")
        waiting: set[str] = set()
        print_table(columns, _rows(chain([first], runs), waiting, held_up), crop=("flow", "next"), head=False)
        if waiting and sys.stdout.isatty():
            one = typed().quoted("show", waiting.pop() if len(waiting) == 1 else "RUN")
            say(f"{shown(one)} says what to type for a run that waits")


def _rows(runs: Iterable[Run], waiting: set[str], held_up: HeldUp) -> Iterator[tuple[object, ...]]:
    """The lines of the list; the runs that wait are put into the set."""
    for run in runs:
        if run.status == RunStatus.WAITING:
            waiting.add(run.id)
        yield run.id, run.status, run.flow, _steps(run), held_up.why(run) or _next(run), time_of(run.updated_at)


class HeldUp:
    """Says of a run that waits for a worker why none takes it up. Who works is asked for once, and only if need be."""

    def __init__(self, runtime: BlockingRuntime) -> None:
        self._runtime = runtime
        self._staff: list[Worker] | None = None

    def why(self, run: Run) -> str | None:
        """The reason; None when there is none, or when the run waits for no worker."""
        if not _waits_for_a_worker(run):
            return None
        if self._staff is None:
            self._staff = self._runtime.workers()
        return _held_up(run, self._staff)


def _waits_for_a_worker(run: Run) -> bool:
    return run.status in (RunStatus.PENDING, RunStatus.INTERRUPTED) and run.owner is None


def _held_up(run: Run, staff: list[Worker]) -> str | None:
    """Why nobody of these takes up a run that waits for a worker."""
    if run.starts_at is not None and run.starts_at > datetime.now(UTC):
        return f"starts {time_of(run.starts_at)}"
    works = any(worker.alive and worker.queues != () for worker in staff)
    # Without any worker, what was interrupted waits for its command to be typed again.
    return why_not_taken(run, staff) if works or run.starts_at is not None else None


def _next(run: Run) -> str:
    if run.status == RunStatus.WAITING and run.waiting_for:
        return run.waiting_for
    return run.next or "-"


def _steps(run: Run) -> str:
    if run.total_steps is not None:
        return f"{run.step}/{run.total_steps}"
    return f"{run.step} ({run.progress:.0f} %)" if run.progress and run.next else str(run.step)


class Shown(msgspec.Struct):
    """What `show` prints, and the shape of its JSON."""

    run: Run
    checkpoint: Checkpoint | None = None
    checkpoints: list[dict[str, Any]] = []
    events: list[Event] = []
    result: Any = None
    damage: list[str] = []
    failed_at: str | None = None
    """Where in the program its step failed."""
    forked_from: str | None = None
    """The checkpoint that it began from."""
    waits: list[Wait] = []
    """What a run that waits is waiting for."""
    held_up: str | None = None
    """Why no worker takes up a run that waits for one."""


@click.command()
@click.argument("ref", metavar="RUN[@SEQ]")
@click.option("--last", metavar="N", default=20, type=click.IntRange(1), help="How many checkpoints and events.")
@store_option
@json_option
def show(ref: str, last: int, store: str | None, json_: bool) -> Exit:
    """Show a run: its checkpoints, its last events, and its state at the latest checkpoint or at SEQ.

    The program is not needed: what is of a type of its own is shown as the JSON that is stored.
    """
    rows = Rows(last)
    found = asyncio.run(_look(store, *parse_ref(ref), last, rows, typed()))
    if found.run.status == RunStatus.FAILED and found.events:
        trace = found.events[-1].data.get("trace")
        found.failed_at = place_of(trace)
        say_trace(str(trace or ""))
    if json_:
        out(as_json(found))
    else:
        _print(found, rows)
    for damage in found.damage:
        say(f"holdfast: {shown(damage)}")
    return Exit.STORE if found.damage else Exit.OK


async def _look(store: str | None, name: str, seq: int | None, last: int, rows: Rows, typed: Typed) -> Shown:
    async with Runtime(where(store), create=False) as runtime:
        run = await runtime.get(name)
        if run is None:
            raise RunNotFoundError(name)
        found = Shown(run)
        if _waits_for_a_worker(run):
            found.held_up = _held_up(run, await runtime.workers())
        checkpoints = await _last(_outlines(runtime, name), last, found)
        found.checkpoints = checkpoints
        opened = OpenWaits(name)
        found.events = await _last(_events(runtime, name, found, rows, opened), last, found)
        if run.status == RunStatus.WAITING and not found.damage:
            found.waits = await with_children(runtime, opened.waits(typed), typed)
        try:
            found.checkpoint = await place(runtime, name if seq is None else f"{name}@{seq}")
            if run.status == RunStatus.COMPLETED:
                found.result = await runtime.result(name, raw=True)
        except ResultExpiredError:
            pass
        except StoreDamagedError as error:
            _note(found, error)
        if seq is not None and found.checkpoint is None and not found.damage:
            nearest = min((point["seq"] for point in checkpoints), key=lambda at: abs(at - seq), default=None)
            raise NotACheckpointError(name, seq, nearest)
        return found


async def _outlines(runtime: Runtime, name: str) -> AsyncIterator[dict[str, Any]]:
    async for point in runtime.checkpoints(name, raw=True):
        size = len(msgspec.json.encode(point.state))
        yield {"seq": point.seq, "step": point.step, "next": point.next, "time": point.created_at, "size": size}


async def _events(runtime: Runtime, name: str, found: Shown, rows: Rows, opened: OpenWaits) -> AsyncIterator[Event]:
    async for event in runtime.events(name):
        rows.add(event)
        opened.see(event)
        if event.type == "created":
            found.forked_from = event.data.get("from")
        yield event


async def _last(items: AsyncIterator[T], count: int, found: Shown) -> list[T]:
    """The last ones that can be read; damage ends the list and is noted."""
    kept: deque[T] = deque(maxlen=count)
    try:
        async for item in items:
            kept.append(item)
    except StoreDamagedError as error:
        _note(found, error)
    return list(kept)


def _note(found: Shown, error: StoreDamagedError) -> None:
    if str(error) not in found.damage:
        found.damage.append(str(error))


def _facts(found: Shown) -> list[tuple[str, object]]:
    run = found.run
    facts: list[tuple[str, object]] = [("run", run.id), ("flow", run.flow), ("status", run.status)]
    text = f", {run.progress_text}" if run.progress_text else ""
    facts += [("steps", f"{run.step}{_of(run)} ({run.progress:.0f} %{text})"), ("next", run.next or "-")]
    if run.status == RunStatus.WAITING:
        for wait in found.waits:
            facts.append(("waits for", wait.what(run.id)))
            facts += [("answer" if wait.wait == "ask" else "send", wait.command)] if wait.command else []
        if not found.waits:
            facts.append(("waits for", run.waiting_for or "something from outside"))
    more = (("error", run.error), ("failed at", found.failed_at), ("from", found.forked_from), ("parent", run.parent))
    queued = (("queue", _queue(run)), ("key", run.key), ("held up", found.held_up))
    facts += [(name, value) for name, value in more + queued if value]
    facts += [(f"meta {key}", pretty_json(value)) for key, value in run.metadata.items()]
    return [*facts, ("created", time_of(run.created_at)), ("changed", time_of(run.updated_at))]


def _queue(run: Run) -> str | None:
    """The place of a run that a worker is to take, or that was put into a queue of its own."""
    if run.starts_at is None and run.queue == "default" and not run.priority:
        return None
    return f"{run.queue}, priority {run.priority}" if run.priority else run.queue


def _of(run: Run) -> str:
    return "" if run.total_steps is None else f"/{run.total_steps}"


def _print(found: Shown, rows: Rows) -> None:
    run = found.run
    print_fields(_facts(found))
    out("\ncheckpoints")
    points = [
        (f"{run.id}@{p['seq']}", p["step"], p["next"] or "-", time_of(p["time"]), p["size"]) for p in found.checkpoints
    ]
    print_table(("checkpoint", "steps done", "next", "time", "bytes of state"), points, crop=("next",))
    out("\nlast events")
    print_table(("seq", "event", "of", "time", "what"), rows, crop=("of",), fold="what")
    if found.checkpoint is not None:
        out(f"\nstate at {found.checkpoint.id}")
        out(pretty_json(found.checkpoint.state))
    if run.status == RunStatus.COMPLETED and found.checkpoint is not None and found.result != found.checkpoint.state:
        out("\nresult")
        out(pretty_json(found.result))


@click.command()
@click.argument("run", metavar="RUN")
@store_option
@json_option
def ledger(run: str, store: str | None, json_: bool) -> Exit:
    """List the journaled calls of a run, as they ended, and what became of each: done, failed, abandoned or in doubt.

    In doubt is a call that was begun under on_doubt "fail" or "ask" and whose end nobody knows. A table in a terminal;
    elsewhere a line per call with tabs between. --json: one JSON object per line.
    """
    check_id(run)
    with BlockingRuntime(where(store), create=False) as runtime:
        found = runtime.get(run)
        if found is None:
            raise RunNotFoundError(run)
        calls = runtime.ledger(run)
        if json_:
            for call in calls:
                out(as_json(call))
            return Exit.OK
        first = next(calls, None)
        if first is None:
            say(f"{run} has no journaled calls")
            return Exit.OK
        rows = ((*_line(call, live=found.status == RunStatus.RUNNING),) for call in chain([first], calls))
        print_table(("call", "status", "key", "seq", "ended", "error"), rows, crop=("key",), fold="error", head=False)
    return Exit.OK


def _line(call: Call, *, live: bool) -> tuple[object, ...]:
    under_way = live and call.status == "in doubt" and call.ended_at is None
    status = "under way" if under_way else call.status
    return call.name, status, call.key, call.seq, time_of(call.ended_at), call.error or ""


@click.command()
@store_option
@json_option
def doctor(store: str | None, json_: bool) -> Exit:
    """Check a store for damage: its structure, every checksum, every chain, every checkpoint. Changes nothing."""
    runs, problems = asyncio.run(_examine(store))
    if json_:
        out(as_json({"ok": not problems, "runs": runs, "problems": problems}))
    else:
        for problem in problems:
            out(f"{shown(_place(problem))}: {shown(problem.problem)}")
        damaged = len({problem.run for problem in problems if problem.run is not None})
        found = f"{_count(len(problems), 'problem')}, {_count(damaged, 'run')} damaged" if problems else "all sound"
        out(f"{_count(runs, 'run')} checked: {found}")
    return Exit.STORE if problems else Exit.OK


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _place(problem: Problem) -> str:
    if problem.run is None:
        return "store"
    return problem.run if problem.seq is None else f"{problem.run}@{problem.seq}"


async def _examine(store: str | None) -> tuple[int, list[Problem]]:
    runs: set[str] = set()
    examined = locate(default_location(create=False) if store is None else store, create=False)
    try:
        await examined.open()
        try:
            problems = [problem async for problem in examine(examined, runs.add)]
        finally:
            await examined.close()
    except StoreDamagedError as error:  # too damaged to be opened
        problems = [Problem(error.run_id, error.seq, error.problem)]
    return len(runs), problems
