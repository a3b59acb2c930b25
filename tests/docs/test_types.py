"""A user's program is clean under mypy --strict, and results have the types that it declares."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from dataclasses import dataclass, field

import holdfast
from holdfast import CheckpointPolicy, End, Pipeline, RetryPolicy, Runtime, call, current_run, flow, step
from holdfast import blocking

@dataclass
class Report:
    topic: str = ""
    found: list[str] = field(default_factory=list)

@step(retry=RetryPolicy(attempts=2), timeout=5)
async def search(state: Report) -> Report:
    state.found.append(current_run().idempotency_key)
    return state

@step
def keep(state: Report) -> None:
    state.found.sort()

def summarize(state: Report) -> Report | End[str]:
    return state if state.found else End("nothing")

report = Pipeline("report", [search, keep, summarize], state=Report, policy=CheckpointPolicy(keep_latest=3))
loop = Pipeline("loop", lambda number, state: End(number), total=None)

async def fetch(url: str, *, tries: int = 1) -> bytes:
    return url.encode()

def count(text: bytes) -> int:
    return len(text)

@flow
async def measure(url: str) -> int:
    reveal_type(await call(fetch, url, tries=2))
    reveal_type(await call.options(key="n", on_doubt="ask")(count, b""))
    reveal_type(await search.options(key="s")(Report()))
    return await call(count, await call(fetch, url))

@flow
def measure_in_thread(url: str) -> int:
    reveal_type(blocking.call(fetch, url))
    return blocking.call(count, b"")

async def main() -> None:
    async with Runtime("sqlite:runs.db", recover=True) as rt:
        reveal_type(await rt.run(report, Report("tides"), id="r1"))
        handle = await rt.start(report, {"topic": "tides"})
        reveal_type(await handle.result())
        reveal_type(await search(Report()))
        async for run in rt.list(status="failed"):
            reveal_type(run)
        checkpoint = await rt.load("r1@2")
        if checkpoint is not None:
            print(checkpoint.step)
        reveal_type(await rt.run(loop, 1))
        reveal_type(await rt.run(measure, "u"))
        reveal_type(await rt.run(measure_in_thread, "u"))
        reveal_type(await measure("u"))
        reveal_type(measure_in_thread("u"))

reveal_type(holdfast.run(report, {}))
with blocking.Runtime("memory:") as rt:
    reveal_type(rt.start(report).result())
"""
REVEALED = [
    *("bytes", "int", "Report", "bytes"),
    *("Report", "Report", "Report", "Run", "Any", "int", "int", "int", "int"),
    *("Report", "Report"),
]


def test_a_program_of_a_user_is_clean_under_strict_mypy(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", program]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert "error" not in done.stdout + done.stderr, done.stdout
    revealed = re.findall(r'Revealed type is "(?:[\w.]*\.)?(\w+)"', done.stdout)
    assert revealed == REVEALED
