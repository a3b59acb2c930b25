"""A damaged run in a store of plain files: left out of the list, but never silently."""

from __future__ import annotations

from typing import Any

import pytest

STORE = ("--store", "file:runs")


@pytest.fixture
def damaged(cli: Any) -> Any:
    """Three runs, of which r1 has a changed byte in its log."""
    for run in ("before", "r1", "after"):
        done = cli("run", "app.py:report", "-i", '{"topic": "tides"}', "--id", run, *STORE)
        assert done.returncode == 0, done.stderr
    (log,) = [path for path in cli.folder.rglob("log.jsonl") if path.parent.name.startswith("r1")]
    log.write_bytes(log.read_bytes().replace(b"tides", b"tidez", 1))
    return cli


def test_ls_says_which_run_it_leaves_out_and_lists_the_others(damaged: Any) -> None:
    done = damaged("ls", *STORE)
    assert done.returncode == 0
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["after", "before"]
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: left out: r1")
    assert "`holdfast doctor`" in line


def test_doctor_counts_the_damaged_run_and_says_it_once(damaged: Any) -> None:
    done = damaged("doctor", *STORE)
    assert done.returncode == 7
    assert done.stdout.splitlines()[-1] == "3 runs checked: 1 problem, 1 run damaged"
    assert done.stderr == ""
    assert damaged.json("doctor", *STORE)["runs"] == 3


def test_a_store_object_warns_once_of_each_damaged_run(damaged: Any, caplog: Any) -> None:
    from holdfast.blocking import Runtime

    with Runtime(f"file:{damaged.folder}/runs", create=False) as runtime:
        for _ in range(3):
            assert [run.id for run in runtime.list()] == ["after", "before"]
    assert len([record for record in caplog.records if record.name == "holdfast"]) == 1
