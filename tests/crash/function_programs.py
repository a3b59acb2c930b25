"""The programs that run functions, maps and agents: children that branch, wait, have children or emit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Runtime
from holdfast.errors import AnsweredError, RunWaitingError
from holdfast.store.files import reader
from holdfast.testing import ManualClock

from . import counting, functions, shapes
from .opening import open_runtime, set_up
from .steps import Reporter


def branching(report: Reporter, *, store: str, seed: int, ledger: str) -> None:
    """A run of many branches."""
    _run(report, store, ledger, functions.branches(), seed)


def parenting(report: Reporter, *, store: str, seed: int, ledger: str, children: int) -> None:
    """A run with many children."""
    _run(report, store, ledger, functions.parent(children), seed)


def producing(report: Reporter, *, store: str, seed: int, ledger: str, chunks: int, changing: bool) -> None:
    """A run that emits; tells of every commit."""
    counting.count_commits(lambda: report("committed"))
    _run(report, store, ledger, functions.stream(chunks, changing=changing), seed)


def mapping(
    report: Reporter, *, store: str, seed: int, ledger: str, items: int, concurrency: int, in_turn: bool
) -> None:
    """A graph of one map; every commit is noted beside the ledger."""
    commits = Path(f"{ledger}.commits")
    counting.count_commits(lambda: functions.note(commits, "."))
    _run(report, store, ledger, shapes.squares(items, concurrency, in_turn=in_turn), {"seed": seed})


def going_round(report: Reporter, *, store: str, seed: int, ledger: str, total: int, each: int) -> None:
    """A run that hands itself on; tells how much it had to load."""
    _run(report, store, ledger, functions.rounds(total, each), {"done": 0, "sum": seed}, opened=_tell_claims)


def _run(
    report: Reporter,
    store: str,
    ledger: str,
    flow: Any,
    input: Any,
    opened: Callable[[Runtime, Reporter], None] = lambda rt, report: None,
) -> None:
    set_up(report, ledger)

    async def main() -> None:
        async with open_runtime(store) as rt:
            opened(rt, report)
            report("result", value=repr(await rt.run(flow, input, id="a")))

    asyncio.run(main())


def _tell_claims(rt: Runtime, report: Reporter) -> None:
    custody, lines = rt._now().engine.custody, [0]
    claim, unseal = custody.claim, reader.unseal

    def counting_unseal(line: bytes, before: str) -> Any:
        lines[0] += 1
        return unseal(line, before)

    async def telling(query: Any) -> Any:
        claims = await claim(query)
        for one in claims:
            report("claimed", run=one.head.id, entries=len(one.entries), lines=lines[0])
        return claims

    custody.claim, reader.unseal = telling, counting_unseal  # type: ignore[method-assign]


def following(report: Reporter, *, store: str, after: int) -> None:
    """A reader of the stream of the run, from behind that seq on to its end."""
    set_up(report, None)

    async def main() -> None:
        async with open_runtime(store) as rt:
            async for event in rt.events("a", after=after, follow=True):
                if event.type == "emitted":
                    report("chunk", seq=event.seq, data=event.data["data"])
                elif event.type == "superseded":
                    report("superseded", seq=event.seq, seqs=event.data["seqs"])
                else:
                    report("other", seq=event.seq)

    asyncio.run(main())


# Waits


def asking(report: Reporter, *, store: str, runs: list[str], ledger: str, beside: bool) -> None:
    """Runs that ask, as far as they come: their result, or what they wait for."""
    set_up(report, ledger)

    async def main() -> None:
        async with open_runtime(store) as rt:
            question = functions.question(beside=beside)
            await asyncio.gather(*(_settled(report, rt, question, 7, run) for run in runs))

    asyncio.run(main())


async def _settled(report: Reporter, rt: Runtime, flow: Any, input: Any, run: str) -> None:
    """Report the result of a run, or what it waits for."""
    try:
        report("result", run=run, value=repr(await rt.run(flow, input, id=run, until="settled")))
    except RunWaitingError as waiting:
        report("waits", run=run, waits_for=str(waiting))


def approving(report: Reporter, *, store: str, seed: int, ledger: str, stays: bool) -> None:
    """An agent that has to ask a person, as far as it comes; the process may stay until it is killed."""
    set_up(report, ledger)

    async def main() -> None:
        async with open_runtime(store) as rt:
            await _settled(report, rt, shapes.agent(shapes.APPROVED), f"What is {seed} worth?", "a")
            if stays:
                await asyncio.Event().wait()

    asyncio.run(main())


def answering(
    report: Reporter,
    *,
    store: str,
    runs: list[str],
    value: Any,
    me: str | None = None,
    other: str | None = None,
    die: tuple[str, int] | None = None,
) -> None:
    """Answers the question of each run, at the same moment as another process does when there is one."""
    set_up(report, None)
    if die is not None:
        counting.die_at(*die)

    async def main() -> None:
        async with open_runtime(store) as rt:
            for run in runs:
                questions = [asked async for asked in rt.asks(run)]
                if not questions:
                    report("answered", run=run)
                    continue
                (question,) = questions
                if me is not None and other is not None:
                    Path(f"{me}-{run}").touch()
                    while not os.path.exists(f"{other}-{run}"):
                        pass
                try:
                    report("won", run=run, ask=await rt.answer(run, value, ask=question.id))
                except AnsweredError as error:
                    report("lost", run=run, ask=error.ask)

    asyncio.run(main())


def timing(report: Reporter, *, store: str, now: float, seconds: float, ledger: str, asked: bool) -> None:
    """A run with a timer at a moment: driven because it was asked for, or found by whoever recovers."""
    set_up(report, ledger)

    async def main() -> None:
        async with open_runtime(store, clock=ManualClock(now), recover=not asked) as rt:
            rt.register(functions.timer)
            try:
                if not asked:
                    async for event in rt.events("a", follow=True):
                        report("event", type=event.type)
                report("result", value=repr(await rt.run(functions.timer, seconds, id="a", until="settled")))
            except RunWaitingError as waiting:
                report("waits", waits_for=str(waiting))

    asyncio.run(main())


PROGRAMS: dict[str, Callable[..., None]] = {
    "branching": branching,
    "parenting": parenting,
    "producing": producing,
    "mapping": mapping,
    "approving": approving,
    "going_round": going_round,
    "following": following,
    "asking": asking,
    "answering": answering,
    "timing": timing,
}
