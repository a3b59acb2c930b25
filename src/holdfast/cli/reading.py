"""The commands that only look: ls, show, doctor."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Any, TypeVar

import click
import msgspec

from holdfast.blocking import Runtime as BlockingRuntime
from holdfast.cli.codes import Exit
from holdfast.cli.explaining import place_of
from holdfast.cli.options import json_option, meta_option, read_meta, read_text, store_option, where
from holdfast.cli.output import as_json, out, pretty_json, print_table, say, say_trace, shown
from holdfast.core.ids import parse_ref
from holdfast.engine.doctor import examine
from holdfast.errors import NotACheckpointError, ResultExpiredError, RunNotFoundError, StoreDamagedError
from holdfast.model import Checkpoint, Event, Problem, Run, RunStatus
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
        if json_:
            for run in runs:
                out(as_json(run))
        else:
            _print_list(runs)
    return Exit.OK


def _print_list(runs: Iterator[Run]) -> None:
    first = next(runs, None)
    if first is None:
        say("no runs")
    else:
        columns = ("run", "status", "flow", "steps", "next", "changed")
        print_table(columns, _rows(chain([first], runs)), crop=("flow", "next"), head=False)


def _rows(runs: Iterable[Run]) -> Iterator[tuple[object, ...]]:
    for run in runs:
        yield run.id, run.status, run.flow, _steps(run), run.next or "-", _time(run.updated_at)


def _steps(run: Run) -> str:
    return str(run.step) if run.total_steps is None else f"{run.step}/{run.total_steps}"


def _time(moment: datetime | None) -> str:
    return "-" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


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


@click.command()
@click.argument("ref", metavar="RUN[@SEQ]")
@click.option("--last", metavar="N", default=20, type=click.IntRange(1), help="How many checkpoints and events.")
@store_option
@json_option
def show(ref: str, last: int, store: str | None, json_: bool) -> Exit:
    """Show a run: its checkpoints, its last events, and its state at the latest checkpoint or at SEQ.

    The program is not needed: what is of a type of its own is shown as the JSON that is stored.
    """
    found = asyncio.run(_look(store, *parse_ref(ref), last))
    if found.run.status == RunStatus.FAILED and found.events:
        trace = found.events[-1].data.get("trace")
        found.failed_at = place_of(trace)
        say_trace(str(trace or ""))
    if json_:
        out(as_json(found))
    else:
        _print(found)
    for damage in found.damage:
        say(f"holdfast: {shown(damage)}")
    return Exit.STORE if found.damage else Exit.OK


async def _look(store: str | None, name: str, seq: int | None, last: int) -> Shown:
    async with Runtime(where(store), create=False) as runtime:
        run = await runtime.get(name)
        if run is None:
            raise RunNotFoundError(name)
        found = Shown(run)
        checkpoints = await _last(_outlines(runtime, name), last, found)
        found.checkpoints = checkpoints
        found.events = await _last(_events(runtime, name, found), last, found)
        try:
            found.checkpoint = await runtime.load(name if seq is None else f"{name}@{seq}", raw=True)
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


async def _events(runtime: Runtime, name: str, found: Shown) -> AsyncIterator[Event]:
    async for event in runtime.events(name):
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


def _print(found: Shown) -> None:
    run = found.run
    facts: list[tuple[str, object]] = [("run", run.id), ("flow", run.flow), ("status", run.status)]
    facts += [("steps", f"{_steps(run)} ({run.progress:.0f} %)"), ("next", run.next or "-")]
    more = (("error", run.error), ("failed at", found.failed_at), ("from", found.forked_from), ("parent", run.parent))
    facts += [(name, value) for name, value in more if value]
    facts += [(f"meta {key}", pretty_json(value)) for key, value in run.metadata.items()]
    facts += [("created", _time(run.created_at)), ("changed", _time(run.updated_at))]
    for name, value in facts:
        out(f"{shown(name):<10} {shown(value)}")
    out("\ncheckpoints")
    rows = [
        (f"{run.id}@{p['seq']}", p["step"], p["next"] or "-", _time(p["time"]), p["size"]) for p in found.checkpoints
    ]
    print_table(("checkpoint", "steps done", "next", "time", "bytes of state"), rows, crop=("next",))
    out("\nlast events")
    events = [(e.seq, e.type, e.step or "-", _time(e.time), e.error or "") for e in found.events]
    print_table(("seq", "event", "step", "time", "error"), events, crop=("step",), fold="error")
    if found.checkpoint is not None:
        out(f"\nstate at {found.checkpoint.id}")
        out(pretty_json(found.checkpoint.state))
    if run.status == RunStatus.COMPLETED and found.checkpoint is not None and found.result != found.checkpoint.state:
        out("\nresult")
        out(pretty_json(found.result))


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
