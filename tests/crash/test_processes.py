"""What processes do to each other: dead owners, forks, and two runtimes on one store."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

from holdfast import Pipeline, Runtime

from . import steps
from .nursery import Nursery, result_of
from .stores import url


def test_a_dead_owner_is_recognised_at_once_and_not_when_its_lease_runs_out(
    kind: str, tmp_path: Path, nursery: Nursery
) -> None:
    arguments = {"store": url(kind, tmp_path), "run": "run", "seed": 1, "steps": 40, "work": 0.01}
    arguments |= {"ledger": str(tmp_path / "ledger")}
    child = nursery.start("plain", **arguments)  # with a lease of an hour
    while child.wait_for("started")["step"] < 5:
        pass
    child.signal(signal.SIGKILL)
    child.finish()
    assert child.status == -signal.SIGKILL
    begun = time.monotonic()
    again = nursery.start("plain", **arguments)
    assert again.wait_for("started")["step"] >= 5
    assert time.monotonic() - begun < 10
    assert result_of(again.finish()) == steps.expected(1, 40)


def test_a_forked_child_reads_with_the_store_it_inherited_and_needs_a_runtime_of_its_own(
    kind: str, tmp_path: Path, nursery: Nursery
) -> None:
    reports = {report["what"]: report for report in nursery.run("forking", kind=kind, folder=str(tmp_path), seed=3)}
    assert "Open a new one in the child process" in reports["told"]["message"]
    assert reports["read"]["status"] == "completed"
    assert reports["ran"]["value"] == steps.expected(3, 4)
    assert reports["child ended"]["status"] == 0
    assert reports["result"]["value"] == steps.expected(3, 4)


async def test_two_runtimes_of_one_process_share_a_store_and_each_step_runs_once(kind: str, tmp_path: Path) -> None:
    began: list[tuple[str, int]] = []

    def advance_of(run: str) -> Any:
        async def advance(index: int, state: dict[str, Any]) -> None:
            began.append((run, index))
            steps.change(state, index)
            await asyncio.sleep(0)

        return advance

    runs = [f"run-{number}" for number in range(6)]
    flows = {run: Pipeline(run, advance_of(run), total=10) for run in runs}
    store = url(kind, tmp_path)
    async with Runtime(store) as one, Runtime(store) as two:
        # Both are asked for every run: whoever comes second joins.
        asked = [rt.run(flows[run], steps.first_state(9), id=run) for run in runs for rt in (one, two)]
        results = await asyncio.gather(*asked)
    assert {repr(result) for result in results} == {steps.expected(9, 10)}
    assert sorted(began) == [(run, index) for run in runs for index in range(10)]
