"""`holdfast start`, `worker` and `workers`: a fleet of real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.cli import working
from holdfast.model import Owner
from holdfast.store.sqlite import SqliteStore

TIDES = '{"topic": "tides"}'


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What a worker says, as it says it."""
    assert process.stderr is not None
    for line in process.stderr:
        yield line.rstrip("\n")


def said(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The first line that a worker says from now on which has this in it."""
    heard = []
    for line in lines(process):
        heard.append(line)
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"{pattern!r} was never said, but: {heard}")


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_worker_takes_what_was_started_and_hands_back_on_sigterm(cli: Any) -> None:
    started = cli("start", "app.py:report", TIDES, "--id", "r1", "--queue", "mail", "--priority", "2", "--key", "ann")
    assert (started.returncode, started.stdout) == (0, "r1\n")
    assert "no worker serves queue 'mail' yet; `holdfast worker app.py --queues mail` does" in started.stderr
    listed = cli("ls")
    assert listed.stdout.split("\t")[:5] == ["r1", "pending", "report", "0/3", "no worker serves queue 'mail'"]
    assert cli.json("ls")["held_up"] == "no worker serves queue 'mail'"
    assert cli("workers").stderr == "no workers\n1 run waits: no worker serves queue 'mail'\n"

    worker = cli.start(
        "worker", "app.py", "--queues", "mail,other", "--concurrency", "7", "--name", "w1", STOP_IN="analyze"
    )
    assert said(worker, "takes runs of").string == (
        "worker w1 takes runs of report, oracle from the queues mail, other, 7 at once"
    )
    assert said(worker, "r1").string == "r1: search"
    assert worker.stdout is not None
    assert worker.stdout.readline() == "in analyze\n"
    found = cli.json("workers")
    assert (found["name"], found["alive"], found["runs"]) == ("w1", True, ["r1"])
    assert (found["queues"], found["flows"], found["concurrency"]) == (["mail", "other"], ["oracle", "report"], 7)
    assert cli("workers").stdout.split("\t")[:6] == ["w1", "alive", found["id"], "1/7", "mail, other", "oracle, report"]

    worker.send_signal(signal.SIGTERM)
    said(worker, "SIGTERM: steps under way may finish")
    cli.let_go()
    assert worker.wait(20) == 0
    assert cli.json("ls")["status"] == "interrupted"

    second = cli.start("worker", "app.py", "--queues", "mail")
    said(second, "r1 completed")
    second.send_signal(signal.SIGINT)
    assert second.wait(20) == 0
    assert cli.ledger == ["search", "analyze", "write"]


def test_a_worker_that_is_killed_is_followed_by_another_at_once(cli: Any) -> None:
    cli("start", "app.py:report", TIDES, "--id", "r1")
    worker = cli.start("worker", "app.py", STOP_IN="write")
    said(worker, "r1: search")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "in write\n"
    cli.kill(worker)
    second = cli.start("worker", "app.py")
    assert said(second, "r1: ").string == "r1: write"
    said(second, "r1 completed")
    assert cli.ledger == ["search", "analyze", "write", "write"]
    assert cli.json("show", "r1")["result"]["v"]["done"] == ["search", "analyze", "write"]


def test_a_worker_says_how_it_is(cli: Any) -> None:
    worker = cli.start("worker", "app.py", "--health", "127.0.0.1:0", "--queues", "a")
    url = said(worker, r"health: (http://127\.0\.0\.1:\d+/health)")[1]
    status, body = get(url)
    while status == 503:  # it has not looked yet
        status, body = get(url)
    assert (status, body["state"], body["queues"], body["runs"]) == (200, "working", ["a"], 0)
    assert get(url.replace("/health", "/other"))[0] == 404
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0


def test_two_workers_with_one_name_both_work_and_the_second_says_so(cli: Any) -> None:
    first = cli.start("worker", "app.py", "--name", "twin")
    said(first, "worker twin takes")
    second = cli.start("worker", "app.py", "--name", "twin")
    assert "--name tells them apart" in said(second, "twin is also the name of another one").string
    printed = cli("workers", "--json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in printed] == ["twin", "twin"]


def test_a_worker_without_the_flow_leaves_the_run_and_ls_says_why(cli: Any) -> None:
    (cli.folder / "other.py").write_text("from holdfast import Pipeline\nother = Pipeline('other', [lambda s: s])\n")
    cli("start", "app.py:report", TIDES, "--id", "r1", "--queue", "q")
    worker = cli.start("worker", "other.py")
    said(worker, "run r1 was not resumed: flow 'report' is not registered here")
    assert cli("ls").stdout.split("\t")[4] == "no worker of queue 'q' has flow 'report'"
    assert cli("workers").stderr == "1 run waits: no worker of queue 'q' has flow 'report'\n"


def test_show_says_where_a_run_is_queued_and_why_nobody_takes_it(cli: Any) -> None:
    cli("start", "app.py:report", TIDES, "--id", "r1", "--queue", "mail", "--priority", "5", "--key", "u7")
    lines = [line.split(maxsplit=1) for line in cli("show", "r1").stdout.splitlines()]
    assert ["queue", "mail, priority 5"] in lines
    assert ["key", "u7"] in lines
    assert ["held", "up    no worker serves queue 'mail'"] in lines
    assert json.loads(cli("show", "r1", "--json").stdout)["held_up"] == "no worker serves queue 'mail'"
    cli("run", "app.py:report", TIDES, "--id", "r2")
    shown = cli("show", "r2").stdout
    assert "queue" not in shown
    assert "held up" not in shown


def test_a_run_that_is_put_off_says_when_it_starts(cli: Any) -> None:
    cli("start", "app.py:report", TIDES, "--id", "r1", "--delay", "1000")
    assert re.fullmatch(r"starts \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", cli("ls").stdout.split("\t")[4])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["worker"], "Missing argument"),
        (["worker", "missing.py"], "there is no such file"),
        (["worker", "app.py:nothing"], "has no flow called 'nothing'"),
        (["worker", "app.py", "--concurrency", "0"], "0 is not in the range"),
        (["worker", "app.py", "--queues", "a,,b"], "is not the name of a queue"),
        (["worker", "app.py", "--health", "eight"], "give PORT or HOST:PORT"),
        (["worker", "app.py", "--health", "127.0.0.1:99999"], "give PORT or HOST:PORT"),
        (["worker", "app.py", "--name", ""], "name="),
        (["start", "app.py:report", "{"], "Give JSON"),
        (["start", "app.py:report", "{}", "--queue", "a b"], "is not the name of a queue"),
        (["start", "app.py:report", "{}", "--delay", "-1"], "delay=-1"),
        (["start", "app.py:report", "{}", "--delay", "1e300"], "less than 3,000 years"),
        (["start", "app.py:report", "{}", "--priority", "99999"], "priority=99999"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_nothing_is_written(cli: Any, arguments: list[str], problem: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2, done.stderr
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (cli.folder / ".holdfast" / "runs.db").exists() or "no runs" in cli("ls").stderr


async def test_a_worker_that_is_told_to_stop_while_it_begins_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks who else there is when it begins; by the time of the answer its store may be closed."""

    class Slow(SqliteStore):
        closed = asyncio.Event()

        async def list_owners(self) -> list[Owner]:
            os.kill(os.getpid(), signal.SIGTERM)
            await self.closed.wait()
            return await super().list_owners()

        async def close(self) -> None:
            await super().close()
            self.closed.set()

    async with asyncio.timeout(20):
        await working._work(Runtime(Slow(tmp_path / "runs.db"), recover=True), None, ["report"])
    assert capsys.readouterr().err.endswith("stopped; every run was handed back\n")
