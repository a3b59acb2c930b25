"""`holdfast demo`: an agent whose processes are killed twice, a person's approval, and the count of what really ran."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from holdfast.blocking import Runtime
from holdfast.cli.codes import Exit
from holdfast.cli.demo_flow import DIE_AFTER, DIE_INSIDE, LEDGER
from holdfast.cli.options import json_option, keep_store
from holdfast.cli.output import as_json, flush, out, shown
from holdfast.core.ids import new_id
from holdfast.errors import StoreUnavailableError

_INSIDE, _AFTER = "check_budget", "pay"
_INPUT = "Pay invoice 7."
_EXPECTED = {"model:1": 1, "find_invoice": 1, "model:2": 1, _INSIDE: 2, "model:3": 1, _AFTER: 1, "model:4": 1}
_DEATHS: tuple[dict[str, str], ...] = ({DIE_INSIDE: _INSIDE}, {}, {DIE_AFTER: _AFTER}, {})


class Process(msgspec.Struct):
    """One typing of the command: what it ran and how it ended."""

    pid: int
    went_on_from: str | None
    ran: list[str]
    ended: str
    exit_code: int


class Demo(msgspec.Struct):
    """What `demo --json` prints."""

    ok: bool
    run: str
    processes: list[Process]
    question: str
    times_run: dict[str, int]
    interrupted: str
    same_idempotency_key: bool


@click.command()
@click.option(
    "--store", metavar="URL", callback=keep_store, help="Where the run is to stay, as for `run`.  [a temporary folder]"
)
@json_option
def demo(store: str | None, json_: bool) -> Exit:
    """Watch an agent survive: killed inside a tool and right after one, it goes on each time; a person approves.

    It uses a temporary folder; with --store the run stays there to be looked at.
    """
    with _ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        found = _perform(Path(folder), store or f"sqlite:{folder}/runs.db", quiet=json_)
    if json_:
        out(as_json(found))
    else:
        _conclude(found)
    return Exit.OK if found.ok else Exit.FAILED


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """While inside, SIGTERM is an error as Ctrl-C is one, so that nothing is left behind."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one is not to cut the cleaning up short
        raise click.exceptions.Exit(Exit.TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _perform(folder: Path, store: str, *, quiet: bool) -> Demo:
    run, ledger = new_id("clerk"), folder / "ledger"
    command = ["run", "holdfast.cli.demo_flow:clerk", "--id", run, "-i", json.dumps(_INPUT)]
    if not quiet:
        _introduce(command)
    processes: list[Process] = []
    question = ""
    for number, death in enumerate(_DEATHS, 1):
        resumed = _resumed(store, run) if processes else 0
        process = _type(command, store, ledger, death)
        process.went_on_from = _origin(store, run, resumed) if processes else None
        processes.append(process)
        if not quiet:
            _narrate(number, process)
        if process.exit_code == Exit.WAITING:
            question = _approve(run, store, quiet=quiet)
    lines = _lines(ledger)
    times = dict(Counter(name for name, _, _ in lines))
    keys = {key for name, _, key in lines if name == _INSIDE}
    codes = [process.exit_code for process in processes]
    went_on = all(process.went_on_from for process in processes[1:])
    ended = codes == [-signal.SIGKILL, Exit.WAITING, -signal.SIGKILL, Exit.OK]
    ok = times == _EXPECTED and len(keys) == 1 and went_on and ended
    return Demo(ok, run, processes, question, times, _INSIDE, len(keys) == 1)


def _introduce(command: list[str]) -> None:
    out("An agent pays an invoice. Its tools are find_invoice, check_budget and pay; before pay, a person is asked.")
    out("The same command is typed four times. The first process is killed with SIGKILL inside a tool, the third one")
    out("right after the payment was committed; in between the agent waits for a person, and no process runs at all:\n")
    out(f"  $ holdfast {shlex.join(command)}\n")


def _type(command: list[str], store: str, ledger: Path, death: dict[str, str]) -> Process:
    """Run the command in a process of its own and see what it did before it ended."""
    before = len(_lines(ledger))
    child = _holdfast(command, store, {LEDGER: str(ledger), **death})
    lines = _lines(ledger)[before:]
    if child.returncode not in (Exit.OK, Exit.WAITING, -signal.SIGKILL) or not lines:
        raise StoreUnavailableError(f"the demo's process failed: {child.stderr.strip().rpartition(chr(10))[2]}")
    if child.returncode == Exit.OK:
        ended = "completed"
    elif child.returncode == Exit.WAITING:
        ended = "it waits for a person"
    else:
        ended = "killed with SIGKILL " + (
            f"inside {_INSIDE}" if DIE_INSIDE in death else f"after {_AFTER} was committed"
        )
    return Process(int(lines[-1][1]), None, [name for name, _, _ in lines], ended, child.returncode)


def _holdfast(command: list[str], store: str, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in (DIE_INSIDE, DIE_AFTER)}
    # The store goes by the environment: a URL may hold a password, and arguments can be seen by others.
    environment |= {"HOLDFAST_STORE": store, **more}
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _approve(run: str, store: str, *, quiet: bool) -> str:
    """Answer as a person would; gives the question."""
    with Runtime(store, create=False) as runtime:
        question = next(runtime.asks(run)).question
    command = ["answer", run, "true"]
    if not quiet:
        out(f"\n   {shown(question)}\n   $ holdfast {shlex.join(command)}\n")
    answered = _holdfast(command, store, {})
    if answered.returncode != 0:
        raise StoreUnavailableError(f"the question could not be answered: {answered.stderr.strip()}")
    return question


def _lines(ledger: Path) -> list[tuple[str, str, str]]:
    if not ledger.exists():
        return []
    entries = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines()]
    return [(name, pid, key) for name, pid, key in entries]


def _resumed(store: str, run: str) -> int:
    with Runtime(store, create=False) as runtime:
        return sum(event.type == "resumed" for event in runtime.events(run))


def _origin(store: str, run: str, before: int) -> str | None:
    """The checkpoint that the last process went on from, by the run's own log."""
    with Runtime(store, create=False) as runtime:
        resumed = [event for event in runtime.events(run) if event.type == "resumed"]
    return f"{run}@{resumed[before].data['from']}" if before < len(resumed) else None


def _narrate(number: int, process: Process) -> None:
    origin = f"went on from {process.went_on_from}" if process.went_on_from else "started the run"
    out(f"{number}. process {process.pid} {origin}")
    out(f"   ran {', '.join(process.ran)}; {process.ended}")
    flush()


def _conclude(found: Demo) -> None:
    out("\nHow often the model was asked and each tool really ran, by a ledger outside of the store:\n")
    for name, times in found.times_run.items():
        note = ""
        if name == found.interrupted:
            same = "the same" if found.same_idempotency_key else "ANOTHER"
            note = f"   cut off by the first kill; {same} idempotency key both times"
        out(f"   {shown(name):<12} {times} x{note}")
    if found.ok:
        out("\nWhat this shows: nothing that had finished was done twice: no answer of the model, no tool, no payment.")
        out("The tool that was cut off ran again with the same key. The approval was asked for once, and held for")
        out("exactly the arguments that were shown. Nobody had to say where to go on: the same command did.")
    else:
        out("\nThis is NOT what should have happened: everything but the interrupted tool is to run exactly once.")
