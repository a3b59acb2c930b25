"""Code that does not let itself be cancelled: it keeps neither its process nor whoever goes on with its run."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast import Pipeline, Runtime, step
from holdfast.blocking import loops
from holdfast.errors import RunInterruptedError

PROGRAM = """
import asyncio
import gc
import sys

import holdfast
from holdfast import Pipeline, step
from holdfast.blocking import Runtime
from holdfast.errors import RunFailedError, RunInterruptedError


async def poll(state):
    while True:
        print("in poll", flush=True)
        try:
            await asyncio.sleep(3600)
        except:  # whatever it is, the agent goes on
            pass


async def both(state):
    await asyncio.gather(poll(state), poll(state))


async def leave(state):
    asyncio.ensure_future(poll(state))
    await asyncio.sleep(0)


polling = Pipeline("polling", [poll])
twice = Pipeline("twice", [both])
timed = Pipeline("timed", [step(timeout=0.01)(poll)])
leaving = Pipeline("leaving", [leave])


def blocking(flow, given, id):
    with Runtime(grace=0) as runtime:
        return runtime.run(flow, given, id=id)


if __name__ == "__main__":
    flow, runs = globals()[sys.argv[1]], {"run": holdfast.run, "blocking": blocking}[sys.argv[2]]
    try:
        runs(flow, 1, id="r1", **({"grace": 0} if runs is holdfast.run else {}))
    except (RunFailedError, RunInterruptedError) as error:
        print(type(error).__name__)
    gc.collect()
    print("the script goes on", flush=True)
"""

REFUSED = "holdfast: left behind, because it would not be cancelled:"
POLITE = 30
"""Seconds that nothing here takes: far more than what leaves at once needs, far less than for ever."""


@pytest.fixture
def start(cli: Any) -> Any:
    (cli.folder / "program.py").write_text(PROGRAM)

    def started(*command: str) -> subprocess.Popen[str]:
        # No warm process: what is let go while the interpreter ends may be what keeps it.
        streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, *command], cwd=cli.folder, env=cli.environment, **streams)
        return cli.to_stop(process)  # type: ignore[no-any-return]

    return started


@pytest.mark.parametrize("how", ["run", "blocking"])
@pytest.mark.parametrize(
    ("flow", "comes_to", "left"),
    [("timed", "RunFailedError\n", "step 'poll' of run r1"), ("leaving", "", "task 'poll'")],
)
def test_a_script_goes_on_without_the_code_that_would_not_be_cancelled(
    start: Any, flow: str, comes_to: str, left: str, how: str
) -> None:
    output, errors = (process := start("program.py", flow, how)).communicate(timeout=POLITE)
    assert (process.returncode, errors) == (0, f"{REFUSED} {left}\n")
    assert output.replace("in poll\n", "") == f"{comes_to}the script goes on\n"


@pytest.mark.parametrize(
    ("flow", "left"), [("polling", "step 'poll' of run r1"), ("twice", "step 'both' of run r1, task 'poll'")]
)
def test_ctrl_c_twice_ends_a_command_whose_step_would_not_be_cancelled(
    cli: Any, start: Any, flow: str, left: str
) -> None:
    process = start("-m", "holdfast", "run", f"program.py:{flow}", "1", "--id", "r1")
    assert process.stdout.readline() == "in poll\n"
    process.send_signal(signal.SIGINT)
    while not process.stderr.readline().startswith("SIGINT"):
        pass
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=POLITE)[1]
    assert process.returncode == 130
    assert f"{REFUSED} {left}\n" in errors
    run = cli.json("show", "r1")["run"]
    assert (run["status"], run["owner"]) == ("interrupted", None)


def test_a_worker_leaves_after_the_grace_time_whatever_its_steps_do(cli: Any, start: Any) -> None:
    cli("start", "program.py:polling", "1", "--id", "r1")
    worker = start("-m", "holdfast", "worker", "program.py", "--grace", "0")
    assert worker.stdout.readline() == "in poll\n"
    worker.send_signal(signal.SIGTERM)
    errors = worker.communicate(timeout=POLITE)[1]
    assert worker.returncode == 0
    assert f"{REFUSED} step 'poll' of run r1\n" in errors
    assert cli.json("show", "r1")["run"]["status"] == "interrupted"


def test_code_whose_run_was_handed_back_gets_no_further_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else may be at its step by now."""
    monkeypatch.setattr(loops, "_A_MOMENT", 1e6)
    cancelled = []

    async def poll(state: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(asyncio.get_running_loop())

    with pytest.raises(RunInterruptedError):
        holdfast.run(Pipeline("polling", [poll]), 1, store="memory:", grace=0)
    assert {loop.is_closed() for loop in cancelled} == {True}


async def test_nothing_of_the_grace_time_is_left_for_who_is_in_a_hurry() -> None:
    inside = asyncio.Event()

    async def wait(state: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    async with Runtime("memory:", grace=1000) as rt:
        await rt.start(Pipeline("waiting", [wait]), 1)
        await inside.wait()
        first = asyncio.ensure_future(rt.close())
        await asyncio.sleep(0)
        assert 900 < rt._time_left <= 1000
        await rt.close()
        await first
    assert rt._time_left == 0


def test_what_lets_itself_be_cancelled_is_waited_for_to_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As asyncio.run does: the clean-up of tasks, the generators that were not read to their end."""
    for name in ("_A_MOMENT", "_A_BLINK"):
        monkeypatch.setattr(loops, name, 0)  # the grace time is theirs
    ended, kept = [], []

    async def items() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            ended.append("generator")

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            ended.append("task")

    @step
    async def begin(state: Any) -> None:
        kept.extend([asyncio.ensure_future(clean_up()), one := items()])
        await anext(one)

    holdfast.run(Pipeline("begins", [begin]), 1, store="memory:", grace=POLITE)
    assert ended == ["task", "generator"]
    (told,) = [record.getMessage() for record in caplog.records if "was cancelled" in record.getMessage()]
    assert told.endswith(f"still goes on, {POLITE} s are left for it: task '{clean_up.__qualname__}'")
