"""What is left when a world is over: what each run has come to, and what its workers did on the way."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from holdfast import Runtime
from holdfast.core.history import read_body
from holdfast.model import RESULT_KINDS, Entry, Head, Kind
from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore

from . import fleet_flows
from .fleet_flows import LIMIT, Start
from .fleet_forks import Forks
from .fleet_guard import check_baggage
from .fleet_staff import Staff
from .fleet_watch import Watch
from .fleet_worker import name_of
from .invariants import Seen, all_heads, check_log, check_result


class Outcome(NamedTuple):
    """What a run comes to. That of a child bears the id of its parent: its own is another one every time."""

    run: str
    flow: str
    result: str
    steps: list[str]
    calls: list[str]


async def undisturbed(starts: list[Start]) -> list[Outcome]:
    """What these runs and their children come to when nobody disturbs them."""
    store = MemoryStore()
    async with Runtime(store) as rt:
        rt.register(*fleet_flows.FLOWS)
        await asyncio.gather(*(rt.run(one.flow, one.input, id=one.id) for one in starts))
        return [await _outcome(rt, store, head) for head in await all_heads(store)]


async def _outcome(rt: Runtime, store: Store, head: Head) -> Outcome:
    seen = Seen(head, await store.read_entries(head.id))
    assert head.status == "completed", f"run {head.id} is {head.status}: {head.error!r}"
    last = await rt.load(head.id)
    assert last is not None
    check_baggage(head.id, last.state)
    ended = [read_body(head.id, entry) for entry in seen.entries.values() if entry.kind == Kind.COMPLETED]
    return Outcome(
        head.parent or head.id, head.flow, repr((last.state, ended[-1].get("result"))), seen.steps, sorted(seen.calls)
    )


def _check_outcomes(found: list[Outcome], expected: list[Outcome]) -> None:
    for here, there in zip(sorted(found), sorted(expected), strict=True):
        assert here[:2] == there[:2], f"there is a run of {here.flow} for {here.run} instead of one of {there.flow}"
        check_result(here.run, here.result, there.result)
        assert here == there, f"run {here.run} has the steps {here.steps} and the calls {here.calls}"


class Begun(NamedTuple):
    """A line of the ledger."""

    attempt: int
    key: str
    pid: int
    at: float


class Found:
    """What is left when a world is over. Every check raises AssertionError."""

    def __init__(
        self, ledger: Path, watch: Watch, acknowledged: set[tuple[str, int]], forks: Forks, staff: Staff
    ) -> None:
        self._watch, self._forks, self._gone, self._left = watch, forks, forks.deleted, staff.told_to_leave
        self._lapsed = watch.lapsed()
        self._silent = staff.stopped | set(self._lapsed.values())
        self._begun: dict[tuple[str, str], list[Begun]] = defaultdict(list)
        for line in ledger.read_text().splitlines():
            run, name, attempt, key, pid, at = line.split()
            if run not in self._gone:
                self._begun[run, name].append(Begun(int(attempt), key, int(pid), float(at)))
        self._acknowledged = {one for one in acknowledged if one[0] not in self._gone}
        self.effects = sum(map(len, self._begun.values()))
        self.committed = self.repeated = self.late = self.most_attempts = 0
        """Effects that were committed; those that began again before; and those of who had been silent for too long."""
        self._busy: list[tuple[float, float, str, int]] = []
        """(from, to, run, fence) of each step of a limited run that counted."""

    async def check(self, url: str, expected: list[Outcome]) -> None:
        """All of it."""
        async with Runtime(url) as rt:
            store: Store = rt._store
            rt.register(*fleet_flows.FLOWS)
            problems = [text for _, text in await store.inspect() if "not ours: torture_" not in text]
            assert problems == [], f"the store's own check found {problems}"
            heads = {head.id: head for head in await all_heads(store)}
            logs, outcomes = {}, {}
            for run, head in heads.items():
                logs[run] = entries = await store.read_entries(run)
                check_log(head, entries)
                outcomes[run] = await _outcome(rt, store, head)
                self._check_effects(head, entries)
            await self._forks.check(rt, {run: one.result for run, one in outcomes.items()})
        _check_outcomes([one for one in outcomes.values() if one.run not in self._forks.made], expected)
        self._check_seen(logs, heads)
        assert not self._begun, f"effects that no log knows of: {list(self._begun)[:5]}"
        self._check_limits(heads)

    def _check_seen(self, logs: dict[str, list[Entry]], heads: dict[str, Head]) -> None:
        """What was acknowledged, and what a reader saw, is there and the same."""
        checks = {(run, entry.seq): entry.check for run, entries in logs.items() for entry in entries}
        assert not (gone := self._acknowledged - checks.keys()), f"acknowledged and gone: {sorted(gone)[:5]}"
        for place, check in self._watch.entries.items():
            assert place[0] in self._gone or checks.get(place) == check, (
                f"{place[0]}@{place[1]} was seen, and is gone or another one now"
            )
        for run, fence in self._watch.fences.items():
            assert run in self._gone or heads[run].fence >= fence, f"run {run}: its fence fell"

    def _check_effects(self, head: Head, entries: list[Entry]) -> None:
        """Each effect that was committed had begun, under one key, and did not begin again afterwards."""
        committed: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            if entry.kind == Kind.CHECKPOINT:
                for name, *_ in read_body(head.id, entry)["steps"]:
                    committed[name].append(entry)
            elif entry.kind in RESULT_KINDS:
                committed[read_body(head.id, entry)["key"]].append(entry)
        for name, commits in committed.items():
            by_key: dict[str, list[Begun]] = defaultdict(list)
            for one in sorted(self._begun.pop((head.id, name), []), key=lambda one: one.at):
                by_key[one.key].append(one)
            if by_key:  # else it had no effect: a wait, or the whole of a body
                assert len(by_key) == len(commits), f"run {head.id}: {name} had {len(by_key)} keys, not {len(commits)}"
                for attempts, entry in zip(by_key.values(), commits, strict=True):
                    self._check_attempts(head, name, attempts, entry)

    def _check_attempts(self, head: Head, name: str, attempts: list[Begun], entry: Entry) -> None:
        # An entry bears the time at which it was made, which is before it was committed. Who was silent past its lease
        # and wakes up may begin one more effect before it is told that the run is another's.
        late = [one for one in attempts if one.at > entry.at]
        again = [one for one in late if one.pid not in self._silent]
        assert not again, f"run {head.id}: {name} was committed at {entry.at}, and began again: {attempts}"
        self.late += len(late)
        attempts = [one for one in attempts if one.at <= entry.at]
        assert attempts, f"run {head.id}: {name} was committed before it began"
        numbers = [one.attempt for one in attempts]
        # Those of a call are counted anew when another one ends, and so are those of an agent's turn, which has calls;
        # those of a step are when who had it was told to leave. Those of two owners at once are not in order.
        anew = "/" in name or head.flow in (fleet_flows.agent.name, fleet_flows.crew.name)
        rising = anew or numbers == sorted(set(numbers)) or any(one.pid in self._silent for one in attempts)
        rising = rising or any(owner in map(name_of, self._left) for *_, owner in self._watch.history(head.id))
        assert rising, f"run {head.id}: {name} had the attempts {numbers}; {self._watch.history(head.id)}, {attempts}"
        self.committed += 1
        self.most_attempts = max(self.most_attempts, len(attempts))
        self.repeated += len(attempts) - 1
        if head.flow == fleet_flows.limited.name:
            self._busy.append((attempts[-1].at, entry.at, head.id, entry.fence))

    def _check_limits(self, heads: dict[str, Head]) -> None:
        """No claim has made more runs of the limited flow be owned than it allows, of all or of one key."""
        claims = self._watch.claims(fleet_flows.limited.name)
        limited = [head for head in heads.values() if head.flow == fleet_flows.limited.name]
        assert {run for run, *_ in claims} == {head.id for head in limited}
        assert LIMIT.total is not None
        assert LIMIT.per_key is not None
        for run, fence, _owner, key, of_flow, of_key in claims:
            assert of_flow <= LIMIT.total, f"run {run} was claimed (fence {fence}) as one of {of_flow} of its flow"
            assert of_key <= LIMIT.per_key, f"run {run} was claimed (fence {fence}) as one of {of_key} of {key}"

        self._check_busy(heads, {(run, fence): owner for run, fence, owner, *_ in claims})

    def _check_busy(self, heads: dict[str, Head], owners: dict[tuple[str, int], str]) -> None:
        """The same as the ledger shows it: at no moment were more of them in a step that counted."""
        busy = Counter[str | None]()
        moments = []
        for begun, ended, run, fence in self._busy:
            if owners[run, fence] not in self._lapsed:
                moments += [(begun, 1, heads[run].key), (ended, -1, heads[run].key)]
        for _, change, key in sorted(moments, key=lambda moment: moment[:2]):
            busy[key] += change
            assert busy.total() <= (LIMIT.total or 0), f"{busy.total()} runs of the limited flow were in a step at once"
            of_key = 0 if key is None else busy[key]
            assert of_key <= (LIMIT.per_key or 0), f"{busy[key]} of the limited runs of {key} were in a step at once"
