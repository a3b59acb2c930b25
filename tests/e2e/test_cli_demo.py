"""`holdfast demo`, the first thing that anybody types."""

from __future__ import annotations

import re
from typing import Any


def test_the_demo_counts_what_ran_and_says_from_where_each_process_went_on(cli: Any) -> None:
    done = cli("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed with SIGKILL inside check_budget" in done.stdout
    assert "killed with SIGKILL after pay was committed" in done.stdout
    assert 'May clerk call pay({"invoice":7,"amount":120})?' in done.stdout
    assert "check_budget 2 x" in done.stdout
    assert done.stdout.count(" 1 x") == 6


def test_the_demo_as_json_has_four_processes_and_leaves_nothing_behind(cli: Any) -> None:
    before = set(cli.folder.iterdir())
    found = cli.json("demo")
    assert found["ok"]
    assert found["times_run"] == {
        "model:1": 1,
        "find_invoice": 1,
        "model:2": 1,
        "check_budget": 2,
        "model:3": 1,
        "pay": 1,
        "model:4": 1,
    }
    assert [process["exit_code"] for process in found["processes"]] == [-9, 4, -9, 0]
    run = found["run"]
    origins = [process["went_on_from"] for process in found["processes"]]
    assert origins == [None, f"{run}@4", f"{run}@7", f"{run}@7"]
    assert found["question"].startswith("May clerk call pay(")
    assert set(cli.folder.iterdir()) == before


def test_with_a_store_the_demo_leaves_its_run_there_to_be_looked_at(cli: Any) -> None:
    found = cli.json("demo", "--store", "sqlite:demo.db")
    shown = cli.json("show", found["run"], "--store", "sqlite:demo.db")
    assert shown["run"]["status"] == "completed"
    assert shown["result"]["output"] == "Invoice 7 of Kelp & Sons is paid."


def test_the_demo_uses_no_other_store_unless_it_is_told_to_and_its_help_says_so(cli: Any) -> None:
    (option,) = re.findall(r"--store URL +(.*?)\n +--", cli("demo", "--help").stdout, re.DOTALL)
    assert "[a temporary folder]" in option
    assert "HOLDFAST_STORE" not in option
    assert cli("demo", HOLDFAST_STORE="sqlite:mine.db").returncode == 0
    assert not (cli.folder / "mine.db").exists()


def test_sigterm_leaves_nothing_of_the_demo_behind(cli: Any) -> None:
    temporary = cli.folder / "temporary"
    temporary.mkdir()
    process = cli.start("demo", TMPDIR=str(temporary))
    while not process.stdout.readline().startswith("1. process"):
        pass
    assert len(list(temporary.iterdir())) == 1
    process.terminate()
    process.communicate()
    assert process.returncode == 143
    assert list(temporary.iterdir()) == []
