"""A team that enriches data, one member after the other, and goes on with the right member after a kill.

    python examples/data_enrichment_team.py                      # kill -9 it at any time and run it again
    python examples/data_enrichment_team.py 0 pipeline-xyz@8     # go on once more from a checkpoint that it named

"doing" is a turn that is really taken, "saved" the checkpoint behind it, of which the latest three are kept. `check`
hands back to `look_up` until everything is known, so who is next depends on the data, and is saved with it.
The runs live in .holdfast/runs.db, or where $HOLDFAST_STORE says.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

from holdfast import CheckpointPolicy, Handover, Runtime, Strategy, Team

SECONDS_PER_TURN = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
FACTS = {"country": "Norway", "employees": 120, "founded": 1988}


@dataclass
class Company:
    name: str
    facts: dict[str, str | int] = field(default_factory=dict)
    score: float = 0.0


async def work(what: str) -> None:
    """Stands for a request to a model or a service."""
    print(f"doing: {what}", flush=True)
    await asyncio.sleep(SECONDS_PER_TURN)


async def clean(company: Company) -> None:
    """The name as it is written in the register."""
    await work("clean")
    company.name = company.name.strip().title()


async def look_up(company: Company) -> None:
    """One more fact."""
    fact = next(fact for fact in FACTS if fact not in company.facts)
    await work(f"look up {fact}")
    company.facts[fact] = FACTS[fact]


async def check(company: Company) -> Handover | None:
    """Back to the one before, until nothing is missing."""
    await work("check")
    return Handover(look_up) if len(company.facts) < len(FACTS) else None


async def score(company: Company) -> None:
    """How interesting it is."""
    await work("score")
    company.score = round(int(company.facts["employees"]) / 1000, 2)


def told(name: str, before: object, after: object) -> None:
    """Say where the run can be gone back to."""
    if name == "checkpoint":
        print(f"saved: {after}", flush=True)


team = Team(
    "data_enrichment",
    [clean, look_up, check, score],
    strategy=Strategy.SEQUENTIAL,
    policy=CheckpointPolicy(every_n_steps=1, keep_latest=3),
    on_step=told,
)


async def main() -> None:
    async with Runtime() as rt:
        rt.register(team)
        if len(sys.argv) > 2:
            result = await (await rt.rewind(sys.argv[2])).result()
        else:
            result = await rt.run(team, {"name": " nordic tides "}, id="pipeline-xyz")
        print(f"result: {result}")


if __name__ == "__main__":
    asyncio.run(main())
