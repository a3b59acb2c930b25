"""The commands of a fleet: start puts a run into a queue, worker takes runs from queues, workers lists who does."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from holdfast.blocking import Runtime as BlockingRuntime
from holdfast.blocking import handing_back_on_signals
from holdfast.blocking.loops import run_on_own_loop
from holdfast.cli.codes import Exit
from holdfast.cli.health import answering, read_address
from holdfast.cli.loading import load_program, only_flow
from holdfast.cli.options import (
    WithValue,
    json_option,
    meta_option,
    read_json,
    read_meta,
    read_text,
    store_option,
    typed,
    where,
)
from holdfast.cli.output import as_json, out, print_table, say, shown, time_of
from holdfast.core.ids import check_id
from holdfast.engine.staff import why_not_taken
from holdfast.errors import StoreError
from holdfast.model import Event, Run, RunStatus, Worker
from holdfast.runtime import Runtime

_LEFT = frozenset({"completed", "failed", "cancelled", "paused", "interrupted", "waiting", "ownership_lost"})
_MOST_RUNS = 10_000


@click.command(cls=WithValue)
@click.argument("flow", metavar="FILE:FLOW")
@click.argument("input_", metavar="[INPUT]", required=False)
@click.option("--id", "id_", metavar="ID", help="The run's id.")
@click.option("--queue", metavar="NAME", default="default", show_default=True, help="The queue that it waits in.")
@click.option("--priority", metavar="N", type=int, default=0, show_default=True, help="Higher goes first.")
@click.option("--delay", metavar="SECONDS", type=float, default=0.0, help="Not before so many seconds from now.")
@click.option("--key", metavar="KEY", help="Whose run it is, where the flow limits how many of one key go at once.")
@meta_option("Something to find the run by later.")
@store_option
@json_option
def start(
    flow: str,
    input_: str | None,
    id_: str | None,
    queue: str,
    priority: int,
    delay: float,
    key: str | None,
    meta: tuple[str, ...],
    store: str | None,
    json_: bool,
) -> Exit:
    """Put a run into a queue, for a worker to take up, and print its id. Nothing runs here.

    FILE:FLOW and INPUT are as for `run`.
    """
    if id_ is not None:
        check_id(id_)
    given = None if input_ is None else read_json(input_, "INPUT")
    loaded, metadata = only_flow(_loaded(flow, json_)), read_meta(meta)
    whose = None if key is None else read_text(key)
    with BlockingRuntime(where(store)) as runtime:
        handle = runtime.start(
            loaded, given, id=id_, metadata=metadata, queue=queue, priority=priority, delay=delay, key=whose
        )
        run = runtime.get(handle.id)
        reason = None if run is None else why_not_taken(run, runtime.workers())
    out(as_json(run) if json_ else handle.id)
    if reason is not None:
        serving = typed().quoted("worker", flow.rpartition(":")[0] or flow, options=("--queues", queue))
        say(f"{reason} yet; {shown(serving)} does")
    return Exit.OK


def _loaded(app: str, json: bool) -> Any:
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        program = typed().program = load_program(app)
    return program


@click.command()
@click.argument("app", metavar="FILE[:FLOW]")
@click.option(
    "--queues", metavar="A,B", help="Take runs from these queues only; may be given several times.", multiple=True
)
@click.option(
    "--concurrency", metavar="N", type=click.IntRange(1), default=100, show_default=True, help="Runs at once."
)
@click.option("--name", metavar="NAME", help="What `workers` calls it.  [host and process id]")
@click.option("--health", metavar="[HOST:]PORT", help="Answer GET /health there: 200 when it is well, else 503.")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="For steps under way when it is told to stop.",
)
@click.option(
    "--lease",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=15.0,
    show_default=True,
    help="Silent for so long, others take over.",
)
@click.option("--quiet", is_flag=True, help="Do not tell of each run.")
@store_option
def worker(
    app: str,
    queues: tuple[str, ...],
    concurrency: int,
    name: str | None,
    health: str | None,
    grace: float,
    lease: float,
    quiet: bool,
    store: str | None,
) -> Exit:
    """Take up runs of the program's flows: what waits in queues, what was interrupted, what is due. Until stopped.

    FILE is a Python file or module; all flows at its top level are served, or only FLOW. Ctrl-C or SIGTERM lets steps
    under way finish within the grace time and hands every run back, so that another worker goes on at once; a second
    one does not wait.
    """
    chosen = _loaded(app, False).chosen
    address = None if health is None else read_address(health)
    runtime = Runtime(
        where(store),
        recover=True,
        queues=_names(queues),
        name=None if name is None else read_text(name),
        concurrency=concurrency,
        grace=grace,
        lease=lease,
        heartbeat=min(5.0, lease / 3),
        on_event=None if quiet else _Teller(),
    )
    runtime.register(*chosen)
    run_on_own_loop(_work(runtime, address, [flow.name for flow in chosen]), runtime)
    return Exit.OK


def _names(queues: Sequence[str]) -> list[str] | None:
    return [name.strip() for text in queues for name in read_text(text).split(",")] if queues else None


async def _work(runtime: Runtime, address: tuple[str, int] | None, flows: list[str]) -> None:
    stopped = asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if not stopped.is_set():
            say(f"{number.name}: steps under way may finish, then every run is handed back; again: at once")
        stopped.set()

    with contextlib.ExitStack() as stack:
        async with runtime, handing_back_on_signals(runtime, signalled):
            await _greet(runtime, flows)
            if address is not None:
                say(f"health: {stack.enter_context(answering(address, lambda: _health(runtime)))}")
            await stopped.wait()
    if runtime._signed_off:
        say("stopped; every run was handed back")
    else:
        say("stopped; the store could not be reached: others take over what is left when the lease has run out")


async def _greet(runtime: Runtime, flows: list[str]) -> None:
    me = runtime.health()
    queues = "every queue" if me.queues is None else f"the queues {', '.join(me.queues)}"
    served = f"{shown(', '.join(flows))} from {shown(queues)}, {me.concurrency} at once"
    say(f"worker {shown(me.name)} takes runs of {served}")
    try:
        staff = await runtime.workers()
    except StoreError:
        return  # told to stop by now, or the server is away for a moment: neither ends a worker that has begun
    for one in staff:
        if one.alive and one.name == me.name and one.id != me.id:
            say(f"{shown(me.name)} is also the name of another one, {one.id}; this is {me.id}. --name tells them apart")


def _health(runtime: Runtime) -> tuple[bool, dict[str, Any]]:
    now = runtime.health()
    return now.well, msgspec.to_builtins(now)


class _Teller:
    """A line for each run that begins or goes on here, and for what becomes of it."""

    def __init__(self) -> None:
        self._here: set[str] = set()

    def __call__(self, event: Event) -> None:
        if event.type == "step_started" and event.run not in self._here:
            self._here.add(event.run)
            say(f"{shown(event.run)}: {shown(event.step)}")
        elif event.type in _LEFT and event.run in self._here:
            self._here.discard(event.run)
            error = f": {shown(event.error)}" if event.error else ""
            say(f"{shown(event.run)} {event.type}{error}")


@click.command()
@store_option
@json_option
def workers(store: str | None, json_: bool) -> Exit:
    """List who drives runs of the store: who is alive, what they serve and what they hold.

    A table in a terminal; elsewhere a line per worker with tabs between. --json: one JSON object per line. What waits
    in a queue that nobody serves is told too.
    """
    with BlockingRuntime(where(store), create=False) as runtime:
        staff = runtime.workers()
        if json_:
            for one in staff:
                out(as_json(one))
        elif staff:
            columns = ("worker", "state", "id", "runs", "queues", "flows", "seen")
            print_table(columns, map(_line, staff), crop=("flows",), head=False)
        else:
            say("no workers")
        for text in _left_waiting(runtime.list(status=RunStatus.PENDING, limit=_MOST_RUNS), staff):
            say(text)
    return Exit.OK


def _line(one: Worker) -> tuple[object, ...]:
    queues = "all" if one.queues is None else ", ".join(one.queues) or "none"
    held = len(one.runs) if one.concurrency is None else f"{len(one.runs)}/{one.concurrency}"
    state = "alive" if one.alive else "dead"
    return one.name, state, one.id, held, queues, ", ".join(one.flows) or "-", time_of(one.seen_at)


def _left_waiting(runs: Iterator[Run], staff: list[Worker]) -> list[str]:
    """For each reason why runs are left waiting, how many are."""
    reasons = Counter(reason for run in runs if run.starts_at is not None and (reason := why_not_taken(run, staff)))
    return [f"{count} {'run waits' if count == 1 else 'runs wait'}: {shown(why)}" for why, count in reasons.items()]
