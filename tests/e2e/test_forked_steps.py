"""Steps that fork: signals for their children are not for the run, and one Ctrl-C is one for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast import Pipeline
from holdfast.errors import RunFailedError

PROGRAM = """
import multiprocessing
import os
import signal
import sys

import holdfast

forking = multiprocessing.get_context("fork")


def wait(ready):
    ready.set()
    while True:  # `pause` would not see one that has come just before it
        signal.pthread_sigmask(signal.SIG_BLOCK, [])
        os.sched_yield()


def ended(state):
    ready = forking.Event()
    child = forking.Process(target=wait, args=(ready,))
    child.start()
    if state != "at once":
        ready.wait()
    child.terminate()
    child.join()
    return child.exitcode


def pooled(state):
    with forking.Pool(2) as pool:  # its end is a SIGTERM for each of its processes
        pool.map(abs, [-1, -2])
    return state


def twice():
    signal.raise_signal(signal.SIGINT)
    print("spared", flush=True)
    signal.raise_signal(signal.SIGINT)


def strike(state):
    child = forking.Process(target=twice)
    child.start()
    child.join()
    return child.exitcode


def held(state):
    print("in child", os.getpid(), flush=True)
    with open("go") as go:
        return int(go.readline())


def one_child(state):
    with forking.Pool(1) as pool:
        return pool.map(held, [state])[0]


pools = holdfast.Pipeline("pools", [ended, pooled])
alone = holdfast.Pipeline("alone", [ended])
struck = holdfast.Pipeline("struck", [strike])
held_up = holdfast.Pipeline("held_up", [one_child, abs])

if __name__ == "__main__":
    print(holdfast.run(pools, "at once", id="r1"))
    signal.signal(signal.SIGTERM, lambda *given: sys.exit(9))
    print(holdfast.run(alone, "when it is ready", id="r2"))  # a pool may lose a signal with such a handler
    os.kill(os.getpid(), signal.SIGTERM)
"""

EARLY = """
import os
import signal
import sys

struck = False
os.register_at_fork(after_in_child=lambda: struck and os.kill(os.getpid(), signal.SIGTERM))

import holdfast  # what it does after a fork comes after what others do who were first
from program import ended


def end_early(state):
    global struck
    struck = True
    return ended("at once")


if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, lambda *given: sys.exit(int(sys.argv[1])))
print(holdfast.run(holdfast.Pipeline("early", [end_early, abs]), 1, id="r1"))
"""


@pytest.fixture
def grouped(cli: Any) -> Iterator[Any]:
    """Starts a command in a process group of its own, as a terminal does, which does not outlive the test."""
    (cli.folder / "program.py").write_text(PROGRAM)
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=cli.folder, env=cli.environment, start_new_session=True, **streams
        )
        started.append(cli.to_stop(process))
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):  # the children too, whatever became of the process itself
            os.killpg(process.pid, signal.SIGKILL)


def test_what_a_script_does_on_a_signal_holds_for_the_children_of_steps_and_after_the_run(
    cli: Any, grouped: Any
) -> None:
    script = grouped("program.py")
    output, errors = script.communicate(timeout=60)
    assert (output, errors, script.returncode) == (f"{-signal.SIGTERM}\n9\n", "", 9)


@pytest.mark.parametrize(("exits", "code"), [((), signal.SIGTERM.value), (("9",), 9), (("0",), 0)])
def test_a_child_that_is_ended_while_it_begins_ends_and_does_not_tell_the_loop_of_its_parent(
    cli: Any, grouped: Any, exits: tuple[str, ...], code: int
) -> None:
    (cli.folder / "early.py").write_text(EARLY)
    script = grouped("early.py", *exits)
    assert (*script.communicate(timeout=60), script.returncode) == (f"{code}\n", "", 0)


def test_a_command_and_a_worker_outlive_the_pools_of_their_steps(cli: Any, grouped: Any) -> None:
    command = grouped("-m", "holdfast", "run", "program.py:pools", "1", "--id", "r1")
    _, errors = command.communicate(timeout=60)
    assert command.returncode == 0, errors
    for number in range(3):
        assert cli("start", "program.py:pools", str(number), "--id", f"w{number}").returncode == 0
    worker = grouped("-m", "holdfast", "worker", "program.py")
    heard, left = [], {f"w{number} completed\n" for number in range(3)}
    for line in worker.stderr:
        heard.append(line)
        left.discard(line)
        if not left:
            break
    assert not left, heard
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0


def test_one_ctrl_c_for_a_step_and_its_children_lets_all_of_them_finish(cli: Any, grouped: Any) -> None:
    command = grouped("-m", "holdfast", "run", "program.py:held_up", "1", "--id", "r1")
    assert command.stdout.readline().startswith("in child ")
    go = os.open(cli.folder / "go", os.O_RDWR)  # also for reading, so that opening it waits for nobody
    os.killpg(command.pid, signal.SIGINT)
    while not (line := command.stderr.readline()).startswith("SIGINT: the step under way may finish"):
        assert line
    os.write(go, b"-7\n")
    _, errors = command.communicate(timeout=60)
    os.close(go)
    assert command.returncode == 130, errors
    run = cli.json("show", "r1")
    assert (run["run"]["status"], run["run"]["step"], run["checkpoint"]["state"]) == ("interrupted", 1, -7)


def test_a_second_ctrl_c_ends_the_children_too(cli: Any, grouped: Any) -> None:
    command = grouped("-m", "holdfast", "run", "program.py:struck", "1", "--id", "r1")
    output, errors = command.communicate(timeout=60)
    assert (output, command.returncode) == ("spared\n1\n", 0)
    assert errors.count("KeyboardInterrupt") == 1


def test_what_a_step_raises_has_no_error_of_ours_as_its_context() -> None:
    seen: list[object] = []

    def look(state: int) -> int:
        seen.append(sys.exc_info()[1])
        raise LookupError("no luck")

    with pytest.raises(RunFailedError) as caught:
        holdfast.run(Pipeline("looking", [look]), 1, store=None)
    error: BaseException | None = caught.value
    while error is not None:
        seen.append(error)
        error = error.__cause__ or error.__context__
    assert seen[0] is None
    assert [type(one).__name__ for one in seen[1:]] == ["RunFailedError", "LookupError"]
