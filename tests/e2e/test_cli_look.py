"""`holdfast ls`, `show`, `pause` and `cancel`."""

from __future__ import annotations

import json
from typing import Any

import pytest


def test_ls_is_one_line_per_run_with_tabs_when_nobody_looks(cli: Any) -> None:
    cli.run_r1()
    fields = cli("ls").stdout.rstrip("\n").split("\t")
    assert fields[:5] == ["r1", "completed", "report", "3/3", "-"]
    assert len(fields) == 6


def test_ls_filters_by_status_flow_and_metadata(cli: Any) -> None:
    cli("run", "app.py:oracle", "--id", "a", "--meta", "user=u1")
    cli("run", "app.py:oracle", "--id", "b", "--meta", "user=u2", "--meta", "n=5")
    cli.run_r1(FAIL_IN="search")

    def ids(*filters: str) -> list[str]:
        return [line.split("\t")[0] for line in cli("ls", *filters).stdout.splitlines()]

    assert ids() == ["r1", "b", "a"]
    assert ids("--status", "failed") == ["r1"]
    assert ids("--flow", "oracle") == ["b", "a"]
    assert ids("--meta", "user=u1") == ["a"]
    assert ids("--meta", "n=5") == ["b"]
    assert ids("--meta", 'n="5"') == []
    assert ids("--limit", "1") == ["r1"]


def test_ls_json_is_one_object_per_line(cli: Any) -> None:
    cli("run", "app.py:oracle", "--id", "a")
    cli("run", "app.py:oracle", "--id", "b")
    runs = [json.loads(line) for line in cli("ls", "--json").stdout.splitlines()]
    assert [run["id"] for run in runs] == ["b", "a"]
    assert {"id", "flow", "status", "step", "total_steps", "next", "progress", "error", "metadata"} <= set(runs[0])


def test_in_a_terminal_ls_is_a_table_with_a_head(cli: Any) -> None:
    cli.run_r1()
    assert cli.in_terminal("ls").splitlines()[0].split() == ["run", "status", "flow", "steps", "next", "changed"]


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_in_a_narrow_terminal_ls_keeps_ids_and_statuses_whole(cli: Any, columns: int) -> None:
    run = "a-run-with-an-id-of-some-length"
    cli("run", "app.py:report", "-i", '{"topic": "x"}', "--id", run, FAIL_IN="search")
    lines = cli.in_terminal("ls", columns=columns).splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:2] == [run, "failed"]


def test_ls_says_so_when_there_is_nothing_to_list(cli: Any) -> None:
    cli.run_r1()
    done = cli("ls", "--status", "failed")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no runs\n")


def test_the_store_may_be_named_before_the_command(cli: Any) -> None:
    cli("--store", "file:runs", "run", "app.py:oracle", "--id", "a")
    assert cli("--store", "file:runs", "ls").stdout == cli("ls", "--store", "file:runs").stdout
    assert "a is deleted" in cli("--store", "file:elsewhere", "delete", "a", "--store", "file:runs").stdout


def test_what_a_step_prints_bit_by_bit_stays_on_its_line_in_a_terminal(cli: Any) -> None:
    (cli.folder / "tokens.py").write_text(
        "from holdfast import Pipeline\n"
        "def quiet(s): pass\n"
        "def talk(s):\n"
        "    for token in 'once upon a time'.split(): print(token, end=' ', flush=True)\n"
        "def after(s): pass\n"
        "tale = Pipeline('tale', [quiet, talk, after])\n"
    )
    seen = cli.in_terminal("run", "tokens.py", "--id", "t1")
    assert "once upon a time \nt1@3: talk done (2 of 3)\nt1@4: after done (3 of 3)\n" in seen


def test_a_deleted_run_is_gone_and_a_live_one_is_refused(cli: Any) -> None:
    process = cli.start_r1(stop_in="analyze")
    assert cli("delete", "r1").returncode == 6
    cli.kill(process)
    assert cli.json("delete", "r1") == {"deleted": "r1"}
    assert cli("show", "r1").returncode == cli("delete", "r1").returncode == 6


def test_show_prints_checkpoints_events_and_the_state_without_the_program(cli: Any) -> None:
    cli.run_r1()
    (cli.folder / "app.py").unlink()
    text = cli("show", "r1").stdout
    assert "checkpoint\tsteps done\tnext\ttime\tbytes of state\n" in text
    assert "seq\tevent\tof\ttime\twhat\n" in text
    assert "r1@3\t2\twrite\t" in text
    assert "step_completed\tanalyze" in text
    assert '"type": "Report"' in text


def test_show_of_a_checkpoint_gives_the_state_there(cli: Any) -> None:
    cli.run_r1()
    found = cli.json("show", "r1@2")
    assert set(found) == {
        "run",
        "checkpoint",
        "checkpoints",
        "events",
        "result",
        "damage",
        "failed_at",
        "forked_from",
        "waits",
        "held_up",
    }
    assert found["checkpoint"]["state"]["v"]["done"] == ["search"]
    assert [point["seq"] for point in found["checkpoints"]] == [1, 2, 3, 4]
    assert set(found["checkpoints"][0]) == {"seq", "step", "next", "time", "size"}


@pytest.mark.parametrize(("ref", "says"), [("r1@5", "r1@4"), ("r1@99", "r1@4"), ("nope", "no run nope")])
def test_show_of_what_is_not_there_is_refused_with_the_nearest_named(cli: Any, ref: str, says: str) -> None:
    cli.run_r1()
    done = cli("show", ref)
    assert (done.returncode, done.stdout) == (6, "")
    assert says in done.stderr


def test_a_run_that_nobody_drives_is_paused_at_once_and_stays_so(cli: Any) -> None:
    cli.kill(cli.start_r1(stop_in="analyze"))
    assert cli("pause", "r1").stdout == "r1 is paused\n"
    again = cli.run_r1()
    assert again.returncode == 3
    assert "`holdfast resume r1 --app app.py`" in again.stderr
    assert cli("resume", "r1", "--app", "app.py").returncode == 0


def test_a_live_run_is_paused_from_another_process(cli: Any) -> None:
    process = cli.start_r1(stop_in="analyze")
    assert "next safe point" in cli("pause", "r1").stdout
    cli.let_go()
    process.communicate()
    assert process.returncode == 3
    assert cli.json("show", "r1")["run"]["status"] == "paused"


def test_a_cancel_is_final_and_keeps_its_reason(cli: Any) -> None:
    cli.kill(cli.start_r1(stop_in="analyze"))
    found = cli.json("cancel", "r1", "--reason", "too dear")
    assert (found["run"]["status"], found["run"]["error"]) == ("cancelled", "too dear")
    again = cli.run_r1()
    assert again.returncode == 5
    assert "too dear" in again.stderr
    assert cli("resume", "r1", "--app", "app.py").returncode == 6


def test_what_cannot_be_paused_is_refused(cli: Any) -> None:
    cli.run_r1()
    assert cli("pause", "r1").returncode == 6
    assert cli("pause", "nope").returncode == 6
