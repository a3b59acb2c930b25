"""`holdfast demo`: a research pipeline in a process that is killed twice, and the count of what really ran."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
import msgspec

from holdfast.blocking import Runtime
from holdfast.cli.codes import Exit
from holdfast.cli.demo_flow import DIE_AFTER, DIE_INSIDE, LEDGER, research
from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import as_json, out, shown
from holdfast.core.ids import new_id
from holdfast.errors import StoreUnavailableError

_INSIDE, _AFTER = "analyze", "write"
_TOPIC = "tides"


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
    times_run: dict[str, int]
    interrupted: str
    same_idempotency_key: bool


@click.command()
@store_option
@json_option
def demo(store: str | None, json_: bool) -> Exit:
    """Watch a run survive: a research pipeline, killed inside a step and between two, goes on each time.

    It uses a temporary folder; with --store the run stays there to be looked at.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        found = _perform(Path(folder), store or f"sqlite:{folder}/runs.db", quiet=json_)
    if json_:
        out(as_json(found))
    else:
        _conclude(found)
    return Exit.OK if found.ok else Exit.FAILED


def _perform(folder: Path, store: str, *, quiet: bool) -> Demo:
    run, ledger = new_id("research"), folder / "ledger"
    command = ["run", "holdfast.cli.demo_flow:research", "--id", run, "-i", json.dumps({"topic": _TOPIC})]
    if not quiet:
        out(f"A research pipeline of {research.total_steps} steps: {' -> '.join(research.step_names)}.")
        out("The same command, typed three times. The first process is killed with SIGKILL inside a step, the second")
        out("one between two steps, right after a commit:\n")
        out(f"  $ holdfast {shlex.join(command)}\n")
    processes: list[Process] = []
    for death in ({DIE_INSIDE: _INSIDE}, {DIE_AFTER: _AFTER}, {}):
        process = _type(command, store, ledger, death)
        process.went_on_from = _origin(store, run, len(processes))
        processes.append(process)
        if not quiet:
            _narrate(len(processes), process)
    lines = _lines(ledger)
    times = dict(Counter(name for name, _, _ in lines))
    keys = {key for name, _, key in lines if name == _INSIDE}
    expected = {name: 2 if name == _INSIDE else 1 for name in research.step_names}
    killed = [process.exit_code == -signal.SIGKILL for process in processes]
    went_on = all(process.went_on_from for process in processes[1:])
    ok = times == expected and len(keys) == 1 and killed == [True, True, False] and went_on
    return Demo(ok and processes[-1].exit_code == 0, run, processes, times, _INSIDE, len(keys) == 1)


def _type(command: list[str], store: str, ledger: Path, death: dict[str, str]) -> Process:
    """Run the command in a process of its own and see what it did before it ended."""
    environment = {k: v for k, v in os.environ.items() if k not in (DIE_INSIDE, DIE_AFTER)}
    # The store goes by the environment: a URL may hold a password, and arguments can be seen by others.
    environment |= {LEDGER: str(ledger), "HOLDFAST_STORE": store, **death}
    child = subprocess.run(
        [sys.executable, "-m", "holdfast", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = _lines(ledger)
    if child.returncode > 0 or not lines:
        raise StoreUnavailableError(f"the demo's process failed: {child.stderr.strip().rpartition(chr(10))[2]}")
    pid = lines[-1][1]
    ended = "completed" if child.returncode == 0 else f"killed with {signal.Signals(-child.returncode).name}"
    where = f" inside {_INSIDE}" if DIE_INSIDE in death else f" right after {_AFTER} was committed" if death else ""
    return Process(int(pid), None, [name for name, by, _ in lines if by == pid], ended + where, child.returncode)


def _lines(ledger: Path) -> list[tuple[str, str, str]]:
    if not ledger.exists():
        return []
    entries = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines()]
    return [(name, pid, key) for name, pid, key in entries]


def _origin(store: str, run: str, before: int) -> str | None:
    """The checkpoint that the last process went on from, by the run's own log; None for the first one."""
    with Runtime(store, create=False) as runtime:
        resumed = [event for event in runtime.events(run) if event.type == "resumed"]
    return f"{run}@{resumed[before - 1].data['from']}" if 0 < before <= len(resumed) else None


def _narrate(number: int, process: Process) -> None:
    origin = f"went on from {process.went_on_from}" if process.went_on_from else "started the run"
    out(f"{number}. process {process.pid} {origin}")
    out(f"   ran {', '.join(process.ran)}; {process.ended}")
    sys.stdout.flush()


def _conclude(found: Demo) -> None:
    out("\nHow often each step really ran, by a ledger outside of the store:\n")
    for name, times in found.times_run.items():
        note = ""
        if name == found.interrupted:
            same = "the same" if found.same_idempotency_key else "ANOTHER"
            note = f"   cut off by the first kill; {same} idempotency key both times"
        out(f"   {shown(name):<8} {times} x{note}")
    if found.ok:
        out(
            "\nWhat this shows: a step that was committed never ran again, the step that was cut off ran again from the"
        )
        out("checkpoint before it, and nobody had to say where to go on: the same command did. The result is complete.")
    else:
        out("\nThis is NOT what should have happened: every step but the interrupted one is to run exactly once.")
