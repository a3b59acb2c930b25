"""The commands that make a run go on in this process: run, resume, rewind, fork."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from holdfast.blocking import handing_back_on_signals
from holdfast.blocking.loops import run_on_own_loop
from holdfast.cli.codes import Exit, code_of
from holdfast.cli.explaining import error_object, message_of, trace_of
from holdfast.cli.loading import Program, load_program, only_flow
from holdfast.cli.options import (
    WithValue,
    app_option,
    json_option,
    meta_option,
    read_json,
    read_meta,
    store_option,
    typed,
    where,
)
from holdfast.cli.output import as_json, is_unread, out, pretty_json, say, say_trace, shown, when_unread
from holdfast.cli.places import place
from holdfast.cli.progress import Watch, watch
from holdfast.cli.waiting import Wait, waits_of
from holdfast.cli.waiting import told as waiting_told
from holdfast.core.ids import check_id, parse_ref
from holdfast.engine.verbs import MISSING
from holdfast.errors import (
    FlowNotRegisteredError,
    HoldfastError,
    RunFailedError,
    RunInterruptedError,
    RunNotFoundError,
    RunWaitingError,
    UsageError,
)
from holdfast.flows.base import Flow
from holdfast.model import Run, RunStatus
from holdfast.runtime import Runtime

_SIGNALLED = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}
_NO_APP = "the program with the flow is needed: --app FILE[:FLOW], or $HOLDFAST_APP"


class Drive:
    """One run driven to where it settles, watched, and reported as text or JSON."""

    def __init__(self, store: str | None, *, json: bool) -> None:
        self._store, self._json, self._typed = store, json, typed()
        self.watch: Watch = watch()
        self._signal: signal.Signals | None = None
        self._error: HoldfastError | None = None
        self._finished_before = self._joined = False
        self._run: Run | None = None
        self._result: Any = None
        self._trace: str | None = None
        self._waits: list[Wait] = []

    def go(self, work: Callable[[Runtime], Awaitable[Any]], *, create: bool = False) -> Exit:
        """Do the work in a runtime that knows the flows of the program, then print what came of it."""
        # All of them: a child may belong to another flow than the one that was asked for.
        flows = [] if self._typed.program is None else list(self._typed.program.flows.values())
        # With --json, stdout is for one JSON object: what the steps print goes to stderr.
        quiet = contextlib.redirect_stdout(sys.stderr) if self._json else contextlib.nullcontext()
        with quiet, self.watch:
            runtime = Runtime(where(self._store), on_event=self.watch, create=create)
            runtime.register(*flows)
            run_on_own_loop(self._drive(runtime, work), runtime)
            if self._handed_back:  # on another loop: what was left behind on that one goes no further
                asyncio.run(self._read_later())
        return self._report()

    async def _drive(self, runtime: Runtime, work: Callable[[Runtime], Awaitable[Any]]) -> None:
        async with runtime, handing_back_on_signals(runtime, self._signalled) as hand_back:
            with when_unread(hand_back):
                try:
                    await work(runtime)
                except HoldfastError as error:
                    self._error = error
            if not self._handed_back:
                await self._read(runtime)

    @property
    def _handed_back(self) -> bool:
        return self._signal is not None or is_unread()

    async def _read_later(self) -> None:
        async with Runtime(where(self._store), create=False) as reading:
            await self._read(reading)

    def _signalled(self, number: signal.Signals) -> None:
        if self._signal is None:
            what = "the step under way may finish, then the run is handed back; again: at once"
            if self._joined and self.watch.went_on_from is None:  # nor was it taken over from there since
                what = "the other process goes on, this one waits no longer"
            self.watch.say(f"{number.name}: {what}")
        self._signal = number

    async def _read(self, runtime: Runtime) -> None:
        self._run = None if self.watch.run is None else await runtime.get(self.watch.run)
        if self._run is not None and self._run.status == RunStatus.COMPLETED:
            self._result = await runtime.result(self._run.id, raw=True)
        if isinstance(self._error, RunFailedError):
            self._trace = await _trace(runtime, self._error)
        if isinstance(self._error, RunWaitingError):
            self._waits = await waits_of(runtime, self._error.run_id, self._typed)

    async def look(self, runtime: Runtime, run: str, flow: Flow[Any]) -> None:
        """See how the run is before this process does anything to it, and say so where that matters."""
        before = await runtime.get(run)
        self.watch.expect(run, 0 if before is None else before.step, flow)
        if before is None:
            return
        if before.status == RunStatus.COMPLETED:
            self._finished_before = True
        elif before.status == RunStatus.RUNNING:
            self._joined = True
            self.watch.say(f"{run} is live in another process; this one waits for its result")

    def _report(self) -> Exit:
        code, error = Exit.OK, self._error
        if error is not None:
            interrupted = isinstance(error, RunInterruptedError) and self._signal is not None
            code = _SIGNALLED[self._signal] if interrupted and self._signal is not None else code_of(error)
        message = "" if error is None else self._message(error)
        if self._json:
            report = {
                "run": self._run,
                "result": self._result,
                "went_on_from": self.watch.went_on_from,
                "already_finished": self._finished_before and error is None,
                "error": None if error is None else error_object(error, code, message),
                "waits": self._waits,
            }
            out(as_json(report))
        if error is not None:
            say_trace(self._trace or trace_of(error))
            say(f"holdfast: {shown(message)}")
        elif self._run is not None and self._run.status == RunStatus.PENDING:
            say(f"{self._run.id} is pending; {shown(self._typed.command('resume', self._run.id))} goes on with it")
        elif not self._json:
            verb = "was already finished" if self._finished_before else "completed"
            say(f"{self.watch.run} {verb}; its result:")
            out(pretty_json(self._result))
        return code

    def _message(self, error: HoldfastError) -> str:
        if isinstance(error, RunWaitingError):
            again = self._typed.command("run", error.run_id, None if self._run is None else self._run.flow)
            return waiting_told(error.run_id, error.waiting_for, self._waits, again, whole=self._json)
        return message_of(error, self._typed, self._run, self._trace)


async def _trace(runtime: Runtime, error: RunFailedError) -> str | None:
    """How the step failed, here or wherever it was."""
    if error.__cause__ is not None:
        return trace_of(error.__cause__)
    failures = [event async for event in runtime.events(error.run_id) if event.type == "failed"]
    return failures[-1].data.get("trace") if failures else None


@click.command(cls=WithValue)
@click.argument("flow", metavar="FILE:FLOW")
@click.argument("input_", metavar="[INPUT]", required=False)
@click.option("-i", "--input", "option", metavar="JSON", help="The input too; @FILE or - (stdin) to read it.")
@click.option("--id", "id_", metavar="ID", help="The run's id: typed again, the same command goes on with it.")
@meta_option("Something to find the run by later.")
@store_option
@json_option
def run(
    flow: str,
    input_: str | None,
    option: str | None,
    id_: str | None,
    meta: tuple[str, ...],
    store: str | None,
    json_: bool,
) -> Exit:
    """Start a run, go on with it, or print its result.

    FILE:FLOW is a Python file (or module) and the flow in it, for example app.py:report; FILE alone will do when
    it has one flow. INPUT is JSON, @FILE or - (stdin). Ctrl-C lets the step under way finish and hands the run back;
    twice: at once.
    """
    if id_ is not None:
        check_id(id_)
    if input_ is not None and option is not None:
        raise UsageError("the input is given twice, with --input and without")
    text = option if input_ is None else input_
    given = MISSING if text is None else read_json(text, "--input")
    metadata = read_meta(meta)
    drive = Drive(store, json=json_)
    loaded = only_flow(_load(flow, json_))

    async def work(runtime: Runtime) -> None:
        if id_ is not None:
            await drive.look(runtime, id_, loaded)
        else:
            drive.watch.expect(None, 0, loaded)
        await runtime.run(loaded, given, id=id_, metadata=metadata, until="settled")

    return drive.go(work, create=True)


@click.command()
@click.argument("ref", metavar="RUN")
@app_option
@store_option
@json_option
def resume(ref: str, app: str | None, store: str | None, json_: bool) -> Exit:
    """Go on with a run that was interrupted, paused, or failed, or that has got what it waited for."""
    return _again(ref, app, store, json_, lambda runtime: _resume(runtime, ref))


async def _resume(runtime: Runtime, ref: str) -> None:
    try:
        await runtime.resume(ref)
    except RunWaitingError:
        pass  # what it waits for may have come: following it finds out


@click.command()
@click.argument("ref", metavar="RUN@SEQ")
@app_option
@store_option
@json_option
def rewind(ref: str, app: str | None, store: str | None, json_: bool) -> Exit:
    """Go on from an older checkpoint, in place. Nothing of the history is deleted."""
    if parse_ref(ref)[1] is None:
        raise UsageError(f"{ref}: name the checkpoint to go back to, {ref}@SEQ. `holdfast show {ref}` lists them.")
    return _again(ref, app, store, json_, lambda runtime: runtime.rewind(ref))


def _again(ref: str, app: str | None, store: str | None, json: bool, verb: Callable[[Runtime], Awaitable[Any]]) -> Exit:
    name, seq = parse_ref(ref)
    if app is None:
        raise UsageError(_NO_APP)
    drive = Drive(store, json=json)
    flows = _load(app, json).chosen

    async def work(runtime: Runtime) -> None:
        known = await runtime.get(name)
        if known is None:
            raise RunNotFoundError(name)
        flow = _flow_of(known, flows)
        drive.watch.expect(name, known.step, flow)
        point = await place(runtime, ref) if seq is not None else None
        if point is not None:
            drive.watch.expect(name, point.step, flow)
        await verb(runtime)
        await runtime.run(flow, id=name, until="settled")

    return drive.go(work)


def _load(app: str, json: bool) -> Program:
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        program = typed().program = load_program(app)
    return program


def _flow_of(run: Run, flows: list[Flow[Any]]) -> Flow[Any]:
    for flow in flows:
        if flow.name == run.flow:
            return flow
    raise FlowNotRegisteredError(run.id, run.flow, [flow.name for flow in flows])


@click.command()
@click.argument("ref", metavar="RUN[@SEQ]")
@click.option("--id", "id_", metavar="ID", help="The new run's id.")
@click.option("--state", metavar="JSON", help="Another state, as `show` prints it; @FILE or - to read it.")
@app_option
@store_option
@json_option
def fork(ref: str, id_: str | None, state: str | None, app: str | None, store: str | None, json_: bool) -> Exit:
    """Begin a new run from a checkpoint. The source is untouched.

    With --app the new run goes on here; without, it stays pending until it is resumed.
    """
    parse_ref(ref)
    if id_ is not None:
        check_id(id_)
    given = MISSING if state is None else read_json(state, "--state")
    drive = Drive(store, json=json_)
    flows = [] if app is None else _load(app, json_).chosen

    async def work(runtime: Runtime) -> None:
        source = await runtime.get(parse_ref(ref)[0])
        point = await place(runtime, ref)
        flow = None if source is None or app is None else _flow_of(source, flows)
        if point is not None:
            drive.watch.expect(id_, point.step, flow)
        as_stored = given if point is None else _typed_like(point.state, given)
        handle = await runtime.fork(ref, id=id_, state=as_stored, raw=True)
        drive.watch.run = handle.id
        if flow is not None:
            await runtime.run(flow, id=handle.id, until="settled")

    return drive.go(work)


def _typed_like(stored: Any, given: Any) -> Any:
    """A plain object in the place of a stored one of some type is meant to be of that type."""
    typed = isinstance(stored, dict) and stored.get("$") == "object"
    return {**stored, "v": given} if typed and isinstance(given, dict) and "$" not in given else given
