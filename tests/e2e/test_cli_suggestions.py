"""What a command suggests can be typed as it is printed, and a failure says where it was."""

from __future__ import annotations

import logging
import re
import shlex
from typing import Any

import pytest

from holdfast.cli import app
from holdfast.cli.explaining import Typed, message_of, place_of
from holdfast.errors import OwnershipLostError

RUN = ("run", "app.py:report", "-i", '{"topic": "tides"}', "--id", "r1")


def suggested(text: str) -> list[list[str]]:
    """The arguments of every command that is named."""
    return [shlex.split(found)[1:] for found in re.findall(r"`(holdfast [^`]*)`", text)]


@pytest.mark.parametrize("store", [(), ("--store", "file:my runs"), ("--store", "sqlite:other.db")])
def test_what_is_suggested_for_a_failed_or_paused_run_goes_on_with_it(cli: Any, store: tuple[str, ...]) -> None:
    (again,) = suggested(cli(*RUN, *store, FAIL_IN="analyze").stderr)
    assert again == ["resume", "r1", "--app", "app.py", *store]
    assert suggested(cli(*RUN, *store).stderr) == [again]
    assert cli(*again, FAIL_IN="write").returncode == 1
    assert cli(*again).returncode == 0


def test_a_paused_run_names_the_command_that_goes_on(cli: Any) -> None:
    cli.kill(cli.start_r1(stop_in="analyze"))
    cli("pause", "r1")
    (again,) = suggested(cli.run_r1().stderr)
    assert cli(*again).returncode == 0


def test_what_is_suggested_for_a_finished_run_gives_its_result(cli: Any) -> None:
    cli.run_r1()
    result, _ = suggested(cli("resume", "r1", "--app", "app.py").stderr)
    assert result == ["run", "app.py:report", "--id", "r1"]
    assert cli(*result).returncode == 0


def test_what_is_suggested_for_a_live_run_reaches_it(cli: Any) -> None:
    cli.start_r1(stop_in="analyze")
    join, pause, cancel = suggested(cli("resume", "r1", "--app", "app.py").stderr)
    assert join == ["run", "app.py:report", "--id", "r1"]
    assert cli(*pause).returncode == cli(*cancel).returncode == 0
    cli.let_go()


def test_a_handed_back_run_that_was_given_no_id_can_be_gone_on_with(cli: Any) -> None:
    process = cli.start("run", "app.py:report", "-i", '{"topic": "x"}', STOP_IN="search")
    assert process.stdout.readline() == "in search\n"
    process.terminate()
    while not process.stderr.readline().startswith("SIGTERM"):
        pass
    process.terminate()
    (again,) = suggested(process.communicate()[1])
    assert again[:1] + again[2:] == ["resume", "--app", "app.py"]
    assert cli(*again).returncode == 0


def test_a_takeover_is_told_once_with_a_command_that_can_be_typed(capsys: Any) -> None:
    lost = OwnershipLostError("r1", 3)
    app.execute(["--version"])
    logging.getLogger("holdfast").warning("holdfast: %s", lost)
    assert capsys.readouterr().err == ""
    assert suggested(message_of(lost, Typed())) == [["run", "FILE:FLOW", "--id", "r1"]]


def test_a_warning_that_cannot_be_written_is_nothing_to_whoever_warns(monkeypatch: Any, capsys: Any) -> None:
    log = logging.getLogger("holdfast")
    monkeypatch.setattr(log, "propagate", False)  # the handler of the test run would raise
    app.execute(["--version"])
    log.warning("holdfast: %d", "no number")
    assert "Logging error" in capsys.readouterr().err


def test_a_password_is_not_repeated_in_a_suggestion() -> None:
    typed = Typed()
    typed.store = "other://user:hunter2@host/db"
    assert typed.command("resume", "r1") == "`holdfast resume r1 --app FILE --store URL`"


def test_show_and_run_say_where_in_the_program_a_step_failed(cli: Any) -> None:
    line = "app.py:18 in work"
    assert line in cli.run_r1(FAIL_IN="analyze").stderr
    assert line in cli.run_r1().stderr
    assert f"failed at  {line}\n" in cli("show", "r1").stdout
    assert cli.json("show", "r1")["failed_at"] == line


def test_debugging_prints_the_whole_traceback_of_the_step(cli: Any) -> None:
    cli.run_r1(FAIL_IN="analyze")
    for done in (cli.run_r1(HOLDFAST_DEBUG="1"), cli("show", "r1", HOLDFAST_DEBUG="1")):
        assert "in analyze\n" in done.stderr
        assert "\nValueError: no luck\n" in done.stderr
    assert "Traceback" not in cli("show", "r1").stderr


def test_the_place_of_a_failure_is_the_program_rather_than_a_library_it_calls() -> None:
    trace = '  File "/home/u/app.py", line 6, in search\n    x\n'
    trace += '  File "/usr/lib/python3.12/json/decoder.py", line 1, in f\n'
    assert place_of(trace) == "/home/u/app.py:6 in search"
    assert place_of(trace.partition("x\n")[2]) == "/usr/lib/python3.12/json/decoder.py:1 in f"
    assert place_of("no frames") is None
    assert place_of(None) is None


def test_a_forked_run_names_the_checkpoint_it_began_from(cli: Any) -> None:
    cli.run_r1()
    cli("fork", "r1@2", "--id", "r2", "--app", "app.py")
    assert "from       r1@2\n" in cli("show", "r2").stdout
    assert cli.json("show", "r2")["forked_from"] == "r1@2"
    assert cli.json("show", "r1")["forked_from"] is None


def test_who_names_the_program_behind_the_run_is_told_how(cli: Any) -> None:
    told = cli("resume", "r1", "app.py:report")
    assert told.returncode == 2
    assert "--app FILE[:FLOW]" in told.stderr
    assert "--app" not in cli("cancel", "r1", "app.py:report").stderr  # which takes no program
