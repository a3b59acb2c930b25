"""`holdfast demo`, the first thing that anybody types."""

from __future__ import annotations

from typing import Any


def test_the_demo_counts_what_ran_and_says_from_where_each_process_went_on(cli: Any) -> None:
    done = cli("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed with SIGKILL inside analyze" in done.stdout
    assert "killed with SIGKILL right after write was committed" in done.stdout
    assert "analyze  2 x" in done.stdout
    assert done.stdout.count("1 x") == 4


def test_the_demo_as_json_has_three_processes_and_leaves_nothing_behind(cli: Any) -> None:
    before = set(cli.folder.iterdir())
    found = cli.json("demo")
    assert found["ok"]
    assert found["times_run"] == {"plan": 1, "search": 1, "analyze": 2, "write": 1, "review": 1}
    assert [process["exit_code"] for process in found["processes"]] == [-9, -9, 0]
    assert [process["went_on_from"] for process in found["processes"]] == [
        None,
        f"{found['run']}@3",
        f"{found['run']}@6",
    ]
    assert set(cli.folder.iterdir()) == before


def test_with_a_store_the_demo_leaves_its_run_there_to_be_looked_at(cli: Any) -> None:
    found = cli.json("demo", "--store", "sqlite:demo.db")
    shown = cli.json("show", found["run"], "--store", "sqlite:demo.db")
    assert shown["run"]["status"] == "completed"
    assert shown["result"]["v"]["approved"] is True
