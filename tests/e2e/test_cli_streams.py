"""Commands that were started without stdin, stdout or stderr, as some daemons start what they start."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

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
