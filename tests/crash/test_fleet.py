"""The fixed-seed share of the torture of a fleet, and a commit cut off at each of its moments."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Pipeline, Runtime
from holdfast.errors import StoreUnavailableError
from servers.postgres import PostgresServer
from servers.postgres_proxy import MOMENTS, Moment, PostgresProxy

from . import fleet, fleet_flows, fleet_found
from .steps import Outside

SEED = 20240229
STEPS = 3


def test_a_fleet_that_is_killed_and_cut_off_does_everything_once(tmp_path: Path) -> None:
    figures = fleet.Figures()
    with closing(fleet.Fleet()) as made:
        made.torture(fleet.tiny(SEED), tmp_path / "world", figures)
    assert figures.worlds == 1
    assert figures.faults["kill"] > 0
    assert figures.steps > 200


async def test_every_shape_has_twenty_effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outside, "ledger", str(tmp_path / "ledger"))
    started = fleet_flows.starts(6, random.Random(SEED))
    await fleet_found.undisturbed(started)
    # A child's id begins with that of its parent.
    had = Counter(line.split()[0].partition(".")[0] for line in (tmp_path / "ledger").read_text().splitlines())
    assert {one.flow.name for one in started} == {"line", "limited", "calls", "graph", "crew"}
    assert had == {one.id: fleet_flows.STEPS for one in started}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_run_whose_commit_is_cut_off_goes_on_where_the_log_ends(
    moment: Moment, postgres: PostgresServer
) -> None:
    """Whether a commit was done is told by the log alone, at each request on the connection that commits."""
    begun: Counter[int] = Counter()

    async def advance(index: int, state: list[int]) -> list[int]:
        begun[index] += 1
        return [*state, index]

    flow: Pipeline[list[int]] = Pipeline("cut", advance, total=STEPS)
    with PostgresProxy(postgres.port) as proxy, postgres.schema() as schema:
        async with asyncio.timeout(60), Runtime(postgres.url(schema, port=proxy.port)) as rt:
            await rt.run(flow, [], id="warm")
            for number in itertools.count():
                begun.clear()
                cuts = proxy.done.total()
                proxy.cut("writer", moment, skip=number)
                try:
                    result = await rt.run(flow, [], id=f"run-{number}")
                except StoreUnavailableError:
                    result = await rt.run(flow, [], id=f"run-{number}")
                assert result == list(range(STEPS))
                assert set(begun) == set(range(STEPS))
                # One that was done is not begun again although nobody was told; one that was not is, once.
                assert begun.total() - STEPS <= (0 if moment == "after" else 1)
                proxy.cancel()
                if proxy.done.total() == cuts:
                    break
            assert number > STEPS
