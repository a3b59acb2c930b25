"""Commands that were started without stdin, stdout or stderr, as some daemons start what they start."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from holdfast.cli import output
from warm import WarmPopen

PROGRAM = """
import os
from holdfast import Pipeline, ask, flow


def talk(state):
    print("in talk", flush=True)
    os.write(1, b"past everything")
    return state + 1


chatty = Pipeline("chatty", [talk])


@flow
async def asking(given) -> str:
    return await ask("What?", schema=str)
"""

CLOSING = """
import sys
from holdfast import Pipeline


def close(state):
    sys.stderr.close()


def wait(state):
    print("in wait", flush=True)
    open("go").read()


pipeline = Pipeline("closing", [close, wait])
"""

SCRIPT = """
import logging
import holdfast
from holdfast.errors import RunInterruptedError


class Broken(logging.Handler):
    def emit(self, record):
        print("told", flush=True)
        raise LookupError("the log is broken")


def wait(state):
    print("in wait", flush=True)
    open("go").read()


logging.getLogger("holdfast").addHandler(Broken())
try:
    holdfast.run(holdfast.Pipeline("waiting", [wait]), 1, id="r1")
except RunInterruptedError:
    print("handed back")
"""

STREAMS: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture
def without(cli: Any) -> Any:
    (cli.folder / "program.py").write_text(PROGRAM)

    def typed(redirection: str, *arguments: str) -> Any:
        command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "holdfast", *arguments]
        return cli.to_stop(subprocess.Popen(command, cwd=cli.folder, env=cli.environment, **STREAMS))

    return typed


def test_a_run_without_stdout_is_done_and_the_lost_result_has_its_code(cli: Any, without: Any) -> None:
    process = without(">&-", "run", "program.py:chatty", "1", "--id", "r1")
    errors = process.communicate()[1]
    assert process.returncode == 8, errors
    assert errors.splitlines()[-1] == "holdfast: the output could not be written: stdout is closed"
    assert cli.json("show", "r1")["result"] == 2
    assert cli("doctor").returncode == 0  # nothing that was printed has gone into the database


@pytest.mark.parametrize("redirection", ["2>&-", "<&-", "2>&- <&-"])
def test_a_run_without_stderr_or_stdin_is_as_any_other(cli: Any, without: Any, redirection: str) -> None:
    process = without(redirection, "run", "program.py:chatty", "1", "--id", "r1", "--json")
    output = process.communicate()[0]
    assert process.returncode == 0
    assert json.loads(output.replace("past everything", ""))["result"] == 2


def test_commands_without_stdout_do_what_they_are_asked_for(cli: Any, without: Any) -> None:
    for command in (("start", "program.py:chatty", "1", "--id", "r1"), ("cancel", "r1"), ("ls",)):
        process = without(">&-", *command)
        errors = process.communicate()[1]
        assert process.returncode == 8, errors
        assert "Traceback" not in errors
    assert cli.json("show", "r1")["run"]["status"] == "cancelled"


def test_what_went_wrong_says_more_than_that_it_could_not_be_printed(cli: Any, without: Any) -> None:
    assert cli("run", "program.py:chatty", "1", "--id", "r1").returncode == 0
    process = without(">&-", "show", "r9", "--json")
    process.communicate()
    assert process.returncode == 6


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_worker_needs_no_streams(cli: Any, without: Any, redirection: str) -> None:
    cli("start", "app.py:report", '{"topic": "x"}', "--id", "r1")
    cli.environment["STOP_IN"] = "write"
    process = without(redirection, "worker", "app.py")
    cli.let_go()  # returns when a step reads it
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0
    assert "write" in cli.ledger


def test_a_value_from_a_stdin_that_is_closed_is_no_empty_value(cli: Any, without: Any) -> None:
    cli("run", "program.py:asking", "1", "--id", "q1")
    for command in (("answer", "q1", "-"), ("run", "program.py:chatty", "-", "--id", "r1")):
        process = without("<&-", *command)
        (line,) = process.communicate()[1].splitlines()
        assert process.returncode == 2
        assert "-: " in line
    assert cli("show", "r1").returncode == 6
    assert cli("answer", "q1", "-", stdin="").returncode == 0


def test_a_step_that_closes_stderr_stops_neither_its_run_nor_a_signal(cli: Any, without: Any) -> None:
    (cli.folder / "program.py").write_text(CLOSING)
    process = without("", "run", "program.py", "1", "--id", "r1")
    assert process.stdout.readline() == "in wait\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)  # the second one: the step is not waited for
    process.communicate()
    assert process.returncode in (130, 143)
    run = cli.json("show", "r1")["run"]
    assert (run["status"], run["next"]) == ("interrupted", "wait")


def test_a_signal_that_cannot_be_logged_hands_the_run_back_all_the_same(cli: Any) -> None:
    (cli.folder / "script.py").write_text(SCRIPT)
    process = cli.to_stop(WarmPopen(["script.py"], cwd=cli.folder, env=cli.environment, **STREAMS))
    assert process.stdout.readline() == "in wait\n"
    for _ in range(2):  # the second one does not wait for the step
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
    assert process.communicate()[0] == "handed back\n"
    assert cli.json("show", "r1")["run"]["status"] == "interrupted"


PRINTING = """
import asyncio
import os
import signal
import sys
from holdfast import Pipeline


def much(state, to=None):
    print("x" * 1_000_000, file=to)
    return state


async def turns(number):
    for _ in range(number):
        await asyncio.sleep(0)


async def much_async(state):
    much(state)
    await turns(1)


async def stopped_before(state):
    signal.raise_signal(signal.SIGINT)
    await turns(10)
    much(state)
    await turns(1000)


async def stopped_after(state):
    much(state)
    await turns(10)
    signal.raise_signal(signal.SIGINT)
    await turns(1000)


def complain(state):
    return much(state, sys.stderr)


def elsewhere(state):
    reading, writing = os.pipe()
    os.close(reading)
    os.write(writing, b"x")


def last(state):
    return "done"


thread = Pipeline("thread", [much, last])
loop = Pipeline("loop", [much_async, last])
before = Pipeline("before", [stopped_before, last])
after = Pipeline("after", [stopped_after, last])
complaining = Pipeline("complaining", [complain, last])
own = Pipeline("own", [elsewhere])
"""


@pytest.mark.parametrize("flow", ["thread", "loop", "before", "after"])
def test_a_step_that_prints_to_nobody_finishes_and_its_run_is_handed_back(cli: Any, flow: str) -> None:
    """With a Ctrl-C too, which a terminal sends to whoever reads as well: it counts as the first one."""
    (cli.folder / "program.py").write_text(PRINTING)
    done = cli.unread("run", f"program.py:{flow}", "1", "--id", "r1")
    assert done.returncode == 141, done.stderr
    assert "holdfast resume r1" in done.stderr.splitlines()[-1]
    run = cli.json("show", "r1")["run"]
    assert (run["status"], run["next"]) == ("interrupted", "last")
    assert cli("run", f"program.py:{flow}", "--id", "r1").returncode == 0


def test_the_reader_of_a_pipe_gets_what_a_step_prints(cli: Any) -> None:
    (cli.folder / "program.py").write_text(PRINTING)
    done = cli("run", "program.py:thread", "1")
    assert (done.returncode, done.stdout) == (0, "x" * 1_000_000 + '\n"done"\n')


def test_a_step_that_complains_to_nobody_is_as_any_other(cli: Any) -> None:
    (cli.folder / "program.py").write_text(PRINTING)
    reading, writing = os.pipe()
    os.close(reading)
    command = ["-m", "holdfast", "run", "program.py:complaining", "1", "--id", "r1"]
    with os.fdopen(writing, "w") as nobody:
        process = WarmPopen(command, cwd=cli.folder, env=cli.environment, **{**STREAMS, "stderr": nobody})
    assert cli.to_stop(process).communicate()[0] == '"done"\n'
    assert process.returncode == 0


def test_a_pipe_of_its_own_that_nobody_reads_fails_a_step(cli: Any) -> None:
    (cli.folder / "program.py").write_text(PRINTING)
    done = cli("run", "program.py:own", "1")
    assert done.returncode == 1
    assert "BrokenPipeError" in done.stderr


def test_nothing_more_is_printed_once_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long list ends there."""
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(output, "_stdout", None)
    with os.fdopen(writing, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        output.prepare()
        with pytest.raises(output.OutputError):
            list(map(output.out, ["a line"] * 10_000))


def test_python_u_prints_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    monkeypatch.setattr(output, "_stdout", None)
    with io.TextIOWrapper(open(writing, "wb", buffering=0), write_through=True) as unbuffered:
        monkeypatch.setattr(sys, "stdout", unbuffered)
        output.prepare()
        output.out("a line")
        assert os.read(reading, 100) == b"a line\n"
    os.close(reading)
