"""`holdfast run`, `resume`, `rewind` and `fork` as real processes."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest


def test_a_run_prints_its_result_and_each_step_as_it_is_done(cli: Any) -> None:
    done = cli.run_r1()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["v"] == {"topic": "tides", "done": ["search", "analyze", "write"]}
    assert "r1 started\nr1@2: search done (1 of 3)\nr1@3: analyze done (2 of 3)" in done.stderr


def test_the_same_command_after_a_kill_goes_on_and_says_from_where(cli: Any) -> None:
    cli.kill(cli.start_r1(stop_in="analyze"))
    done = cli.run_r1()
    assert done.returncode == 0, done.stderr
    assert "r1 goes on from r1@2: next step analyze (1 of 3 done)" in done.stderr
    assert cli.ledger == ["search", "analyze", "analyze", "write"]


def test_a_finished_run_typed_again_prints_its_result_and_says_so(cli: Any) -> None:
    first = cli.run_r1()
    again = cli.run_r1()
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert again.stderr == "r1 was already finished; its result:\n"
    assert len(cli.ledger) == 3


def test_the_result_of_a_run_that_ended_itself_is_what_it_ended_with(cli: Any) -> None:
    found = cli.json("run", "app.py:oracle", "--id", "o1")
    assert found["result"] == {"answer": 42}
    assert cli.json("show", "o1")["result"] == {"answer": 42}


def test_json_says_everything_in_one_object(cli: Any) -> None:
    found = cli.json("run", "app.py:report", "-i", '{"topic": "x"}', "--id", "r1", "--meta", "user=u7", "--meta", "n=5")
    assert set(found) == {"run", "result", "went_on_from", "already_finished", "error", "waits"}
    assert found["run"]["metadata"] == {"user": "u7", "n": 5}
    assert (found["run"]["status"], found["error"]) == ("completed", None)


def test_what_steps_print_does_not_spoil_the_json(cli: Any) -> None:
    process = cli.start("run", "app.py:report", "-i", '{"topic": "x"}', "--id", "r1", "--json", STOP_IN="write")
    while process.stderr.readline() != "in write\n":
        pass
    cli.let_go()
    assert json.loads(process.communicate()[0])["run"]["status"] == "completed"


def test_input_comes_from_stdin_or_a_file(cli: Any) -> None:
    (cli.folder / "in.json").write_text('{"topic": "from a file"}')
    piped = cli("run", "app.py:report", "-i", "-", "--id", "a", stdin='{"topic": "from stdin"}')
    read = cli("run", "app.py:report", "-i", "@in.json", "--id", "b")
    assert json.loads(piped.stdout)["v"]["topic"] == "from stdin"
    assert json.loads(read.stdout)["v"]["topic"] == "from a file"


def test_another_input_for_the_same_id_is_refused_and_nothing_runs(cli: Any) -> None:
    cli.run_r1()
    done = cli("run", "app.py:report", "-i", '{"topic": "other"}', "--id", "r1")
    assert (done.returncode, done.stdout) == (6, "")
    assert "another input" in done.stderr
    assert len(cli.ledger) == 3


def test_a_failed_run_says_where_and_resume_tries_that_step_again(cli: Any) -> None:
    failed = cli.run_r1(FAIL_IN="analyze")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        "holdfast: run r1 failed in step 'analyze': ValueError: no luck (app.py:18 in work). "
        "`holdfast resume r1 --app app.py` tries it again."
    )
    resumed = cli("resume", "r1", "--app", "app.py")
    assert resumed.returncode == 0, resumed.stderr
    assert cli.ledger == ["search", "analyze", "analyze", "write"]


def test_a_program_that_has_got_more_steps_is_counted_as_it_is_now(cli: Any) -> None:
    cli.run_r1(FAIL_IN="analyze")
    text = (cli.folder / "app.py").read_text()
    (cli.folder / "app.py").write_text(text.replace("[search,", "[search, (lambda s: s), (lambda s: s),"))
    resumed = cli("resume", "r1", "--app", "app.py", FAIL_IN="write").stderr
    assert ": next step analyze (3 of 5 done)\n" in resumed
    assert ": analyze done (4 of 5)\n" in resumed
    run = cli.json("show", "r1")["run"]
    assert (run["step"], run["total_steps"]) == (4, 5)
    assert ": analyze done (4 of 5)\n" in cli("fork", "r1@2", "--app", "app.py").stderr


def test_rewind_goes_on_from_an_older_checkpoint(cli: Any) -> None:
    cli.run_r1()
    done = cli("rewind", "r1@2", "--app", "app.py:report")
    assert done.returncode == 0, done.stderr
    assert "r1 goes on from r1@2: next step analyze (1 of 3 done)" in done.stderr
    assert cli.ledger == ["search", "analyze", "write", "analyze", "write"]


@pytest.mark.parametrize(("ref", "code"), [("r1", 2), ("r1@99", 6), ("r1@5", 6)])
def test_rewind_needs_a_checkpoint_and_names_the_nearest(cli: Any, ref: str, code: int) -> None:
    cli.run_r1()
    done = cli("rewind", ref, "--app", "app.py")
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1


def test_a_fork_without_the_program_waits_and_says_how_to_go_on(cli: Any) -> None:
    cli.run_r1()
    forked = cli("fork", "r1@2", "--id", "r2", "--state", '{"topic": "other", "done": []}')
    assert forked.returncode == 0, forked.stderr
    assert "`holdfast resume r2 --app FILE`" in forked.stderr
    assert cli.json("show", "r2")["run"]["status"] == "pending"
    resumed = cli("resume", "r2", HOLDFAST_APP="app.py")
    assert json.loads(resumed.stdout)["v"] == {"topic": "other", "done": ["analyze", "write"]}


def test_a_fork_with_the_program_goes_on_here(cli: Any) -> None:
    cli.run_r1()
    found = cli.json("fork", "r1@2", "--id", "r2", "--app", "app.py")
    assert found["run"]["status"] == "completed"
    assert found["result"]["v"]["done"] == ["search", "analyze", "write"]
    assert cli.json("show", "r1")["run"]["status"] == "completed"


@pytest.mark.parametrize(
    ("state", "code"),
    [('{"no_such_field": 1}', 6), ('{"topic": 7, "done": []}', 2), ('{"topic": "x", "done": 5}', 2), ("5", 2)],
)
def test_a_fork_whose_state_does_not_fit_is_refused_before_it_exists(cli: Any, state: str, code: int) -> None:
    cli.run_r1()
    done = cli("fork", "r1@2", "--id", "r2", "--state", state, "--app", "app.py")
    assert done.returncode == code
    assert ("Report has no field 'no_such_field' (it has: topic, done)" in done.stderr) == (code == 6)
    assert cli("show", "r2").returncode == 6


def test_a_program_whose_types_do_not_fit_a_run_leaves_it_to_one_that_does(cli: Any) -> None:
    cli.kill(cli.start_r1(stop_in="analyze"))
    fits = (cli.folder / "app.py").read_text()
    (cli.folder / "app.py").write_text(fits.replace("topic: str\n", "topic: str\n    lang: str\n"))
    for command in (["resume", "r1", "--app", "app.py"], ["run", "app.py:report", "--id", "r1"]):
        for _ in range(3):
            done = cli(*command)
            assert done.returncode == 6
            (line,) = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
            assert "Report was stored without its field 'lang'. Give the field a default" in line
            assert line.endswith("Run r1 is unchanged")
    assert cli.json("show", "r1")["run"]["status"] == "interrupted"
    (cli.folder / "app.py").write_text(fits)
    assert cli("resume", "r1", "--app", "app.py").returncode == 0
    assert cli.ledger == ["search", "analyze", "analyze", "write"]


def test_ctrl_c_lets_the_step_finish_and_hands_the_run_back(cli: Any) -> None:
    process = cli.start_r1(stop_in="analyze")
    process.send_signal(signal.SIGINT)
    while not process.stderr.readline().startswith("SIGINT: the step under way may finish"):
        pass
    cli.let_go()
    process.communicate()
    assert process.returncode == 130
    run = cli.json("show", "r1")["run"]
    assert (run["status"], run["next"]) == ("interrupted", "write")
    assert cli.run_r1().returncode == 0
    assert cli.ledger == ["search", "analyze", "write"]


def test_ctrl_c_twice_hands_the_run_back_in_the_middle_of_the_step(cli: Any) -> None:
    process = cli.start_r1(stop_in="analyze")
    process.send_signal(signal.SIGINT)
    while not process.stderr.readline().startswith("SIGINT"):
        pass
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert cli.json("show", "r1")["run"]["next"] == "analyze"


def test_sigterm_hands_the_run_back_too(cli: Any) -> None:
    process = cli.start_r1(stop_in="analyze")
    process.send_signal(signal.SIGTERM)
    while not process.stderr.readline().startswith("SIGTERM"):
        pass
    cli.let_go()
    process.communicate()
    assert process.returncode == 143


def test_a_run_that_is_live_elsewhere_is_joined(cli: Any) -> None:
    first = cli.start_r1(stop_in="analyze")
    second = cli.start("run", "app.py:report", "--id", "r1")
    assert second.stderr.readline() == "r1 is live in another process; this one waits for its result\n"
    cli.let_go()
    assert second.communicate()[0] == first.communicate()[0]
    assert cli.ledger == ["search", "analyze", "write"]


def test_ctrl_c_while_waiting_for_another_process_only_ends_the_wait(cli: Any) -> None:
    first = cli.start_r1(stop_in="analyze")
    second = cli.start("run", "app.py:report", "--id", "r1")
    second.stderr.readline()
    second.send_signal(signal.SIGINT)
    told = second.communicate(timeout=30)[1].splitlines()
    assert second.returncode == 130
    assert told == [
        "SIGINT: the other process goes on, this one waits no longer",
        "holdfast: this process no longer waits for run r1, which goes on in another one.",
    ]
    cli.let_go()
    first.communicate()
    assert first.returncode == 0


def test_ctrl_c_after_another_process_has_died_hands_back_what_was_taken_over(cli: Any) -> None:
    first = cli.start_r1(stop_in="analyze")
    second = cli.start("run", "app.py:report", "--id", "r1", STOP_IN="analyze")
    second.stderr.readline()
    cli.kill(first)
    assert second.stdout.readline() == "in analyze\n"
    second.send_signal(signal.SIGINT)
    while not (line := second.stderr.readline()).startswith("SIGINT"):
        pass
    cli.let_go()
    second.communicate()
    assert "then the run is handed back" in line
    assert cli.json("show", "r1")["run"]["status"] == "interrupted"


def test_a_live_run_is_not_resumed(cli: Any) -> None:
    cli.start_r1(stop_in="analyze")
    done = cli("resume", "r1", "--app", "app.py")
    assert done.returncode == 6
    assert len(done.stderr.splitlines()) == 1
