"""What must hold after every crash, looked at from the outside.

A witness looks at a copy of the store with a store object of its own, so that looking mends nothing. It
remembers what it saw: whatever was there once must be there next time, and what is new must have been
written by whoever came after.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast import Runtime
from holdfast.core.history import Fold, log_problem, read_body
from holdfast.core.transitions import check_transition
from holdfast.model import CHECKPOINT_KINDS, RESULT_KINDS, Entry, Head, Kind, Query
from holdfast.store.base import Store
from holdfast.store.locate import locate

from .stores import copied

# What may follow an entry that ends or stops a run.
_AFTER = {
    Kind.COMPLETED: {Kind.REWOUND},
    Kind.FAILED: {Kind.RESUMED, Kind.REWOUND},
    Kind.PAUSED: {Kind.RESUMED, Kind.REWOUND, Kind.CANCELLED},
    Kind.CANCELLED: set(),
}


class Seen:
    """One run as a witness saw it."""

    def __init__(self, head: Head, entries: list[Entry]) -> None:
        self.head, self.entries = head, {entry.seq: entry for entry in entries}
        self.step: int = 0

    @cached_property
    def calls(self) -> dict[str, Any]:
        """The results of the calls and waits that the log holds, by key."""
        return {body["key"]: body["result"] for body in self._ended if "result" in body}

    @cached_property
    def failed(self) -> set[str]:
        """The keys of the calls that the log says have failed."""
        return {body["key"] for body in self._ended if "error" in body}

    @property
    def _ended(self) -> Iterator[dict[str, Any]]:
        return (read_body(self.head.id, entry) for entry in self.entries.values() if entry.kind in RESULT_KINDS)

    @cached_property
    def steps(self) -> list[str]:
        """The names of the steps that the log holds, one for each time."""
        bodies = (read_body(self.head.id, entry) for entry in self.entries.values() if entry.kind == Kind.CHECKPOINT)
        return [step[0] for body in bodies for step in body["steps"]]

    @cached_property
    def in_doubt(self) -> set[str]:
        """The keys of the calls that the log says were begun, and not how they ended."""
        keys: dict[str, set[str]] = {Kind.INTENT: set(), Kind.CALL: set()}
        for entry in self.entries.values():
            if entry.kind in keys:
                keys[entry.kind].add(read_body(self.head.id, entry)["key"])
        return keys[Kind.INTENT] - keys[Kind.CALL]


class Witness:
    """Looks at one store after every crash. Every method raises AssertionError when an invariant is broken."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        scratch: Path,
        ledger: Path,
        *,
        names: Iterable[str] = (),
        served: str | None = None,
    ) -> None:
        """`names` are those of a pipeline's steps; without them the runs are those of functions.

        `served` is the URL of a store that a server keeps: it is looked at where it is.
        """
        self._kind, self._folder, self._scratch, self._ledger, self._served = kind, folder, scratch, ledger, served
        self._names = list(names)
        self._acknowledged: set[tuple[str, int]] = set()
        self._read_to = 0
        self._keys: dict[tuple[str, str], list[str]] = {}
        self.effects: Counter[tuple[str, str]] = Counter()
        """How often each step or call of each run has begun."""
        self.seen: dict[str, Seen] = {}
        self.starts = 0
        self.drops_history = False
        """Whether the policy lets old entries go, so that they may be missing."""
        self.owner_lives = False
        """Whether somebody goes on with the runs while they are looked at."""
        self.deletes: frozenset[str] = frozenset()
        """The runs that are deleted on purpose, and made again under the same id."""

    def acknowledge(self, reports: Iterable[dict[str, Any]]) -> None:
        """Take in what a child reported: each `acknowledged` must be in the log from now on."""
        for report in reports:
            if report["what"] == "acknowledged" and report["run"] not in self.deletes:
                self._acknowledged.add((report["run"], report["seq"]))

    def look(self) -> dict[str, Seen]:
        """Check every invariant on the store as it lies there now."""
        self._read_ledger()
        found = asyncio.run(self._look())
        for run, now in found.items():
            before = self.seen.get(run)
            if before is not None and before.head.created_at == now.head.created_at:
                self._check_growth(before, now)
        for run, seq in self._acknowledged:
            assert run in found, f"run {run} was acknowledged at seq {seq} and is gone"
            kept = seq in found[run].entries or (self.drops_history and seq <= found[run].head.seq)
            assert kept, f"{run}@{seq} was acknowledged and is gone"
        self.seen = found
        self._check_keys()
        return found

    async def _look(self) -> dict[str, Seen]:
        store = locate(self._served) if self._served else copied(self._kind, self._folder, self._scratch)
        async with Runtime(store) as rt:
            problems = [text for _, text in await store.inspect() if "did not finish" not in text]
            assert problems == [], f"the store's own check found {problems}"
            return {head.id: await self._look_at(rt, store, head) for head in await all_heads(store)}

    async def _look_at(self, rt: Runtime, store: Store, head: Head) -> Seen:
        entries = await store.read_entries(head.id)
        seen = Seen(head, entries)
        check_log(head, entries, whole=not self.drops_history)
        last = None
        async for checkpoint in rt.checkpoints(head.id):
            if self._names:
                check_state(checkpoint.id, self._names, checkpoint.state, checkpoint.step, checkpoint.next)
            last = checkpoint
        assert last is not None, f"run {head.id} has no checkpoint left"
        run = await rt.get(head.id)
        assert run is not None
        assert (run.step, run.next) == (last.step, last.next), (
            f"run {head.id}: its position is not its last checkpoint's"
        )
        seen.step = run.step
        return seen

    def _check_growth(self, before: Seen, now: Seen) -> None:
        run = now.head.id
        assert now.head.fence >= before.head.fence, f"run {run}: its fence fell"
        assert now.head.seq >= before.head.seq, f"run {run}: its log became shorter"
        for seq, entry in before.entries.items():
            if seq in now.entries or not self.drops_history:
                same = now.entries.get(seq) == entry or (self.drops_history and entry.kind in CHECKPOINT_KINDS)
                assert same, f"{run}@{seq} was seen and is another one now"
        for seq, entry in now.entries.items():
            if seq > before.head.seq:
                # When its owner was dead at the last look, somebody must have claimed it since.
                oldest = before.head.fence + (0 if self.owner_lives else 1)
                assert entry.fence >= oldest, f"{run}@{seq} was written by a superseded owner"

    def _read_ledger(self) -> None:
        """What was committed when it was looked at last, step or call, has not begun again since."""
        if not self._ledger.exists():
            return
        with open(self._ledger, "rb") as ledger:
            ledger.seek(self._read_to)
            lines = ledger.read().splitlines(keepends=True)
        for line in lines:
            self._read_to += len(line)
            run, name, _attempt, key, _pid, _at = line.decode().split()
            self.starts += 1
            self.effects[run, name] += 1
            if run not in self.deletes:
                keys = self._keys.setdefault((run, name), [])
                again = key in keys[: self._committed(run, name)]
                assert not again, f"run {run}: {name} was committed and began again"
                keys += [] if key in keys else [key]

    def _check_keys(self) -> None:
        for (run, name), keys in self._keys.items():
            # One for each branch that has it committed, and the one that all attempts since then share.
            allowed = 1 if "/" in name else self._committed(run, name) + 1
            assert len(keys) <= allowed, f"run {run}: {name} had {len(keys)} keys, {allowed} at most are right"
        every = Counter(key for keys in self._keys.values() for key in keys)
        assert not every or max(every.values()) == 1, "two steps have the same idempotency key"

    def _committed(self, run: str, name: str) -> int:
        """On how many branches the step or call was committed, as of the last look."""
        seen = self.seen.get(run)
        if seen is None:
            return 0
        if "/" in name:
            return int(name in seen.calls)
        return max(seen.steps.count(name), int(self.drops_history and self._names.index(name) < seen.step))


def check_state(ref: str, names: list[str], state: dict[str, Any], step: int, next_step: str | None) -> None:
    """No half step: a state knows which of the steps made it, and the position must say the same."""
    assert state["done"] == names[:step], f"{ref}: its position is step {step}, its state has {state['done']}"
    assert len(state["trail"]) == len(state["by_step"]) == step, f"{ref}: half of a step"
    if next_step is not None:
        assert next_step == names[step], f"{ref}: step {step} is not followed by {next_step}"


def check_log(head: Head, entries: list[Entry], *, whole: bool = True) -> None:
    """One log by itself: gapless, every checksum right, every checkpoint rebuilt, no fence that falls."""
    run = head.id
    assert entries, f"run {run} has no log"
    assert entries[0].seq == 1 or not whole, f"run {run}: its log begins at {entries[0].seq}"
    assert [entry.seq for entry in entries] == list(range(entries[0].seq, head.seq + 1)), f"run {run}: gaps in its log"
    fold = Fold(run)
    for entry in entries:
        fold.add(entry)
    assert (problem := log_problem(head, entries)) is None, f"run {run}: {problem}"
    assert entries[-1].cursor == head.cursor, f"run {run}: its head has another position than its log"
    assert entries[-1].fence <= head.fence, f"run {run}: its head has an older fence than its log"
    for entry, after in pairwise(entries):
        allowed = _AFTER.get(Kind(entry.kind))
        assert allowed is None or after.kind in allowed, f"{run}@{after.seq}: {after.kind} after {entry.kind}"
        let_go = entry.kind == Kind.WAITING
        assert not let_go or after.fence > entry.fence, f"{run}@{after.seq}: written by who had let the run go"
    waits = entries[-1].kind == Kind.WAITING
    assert waits == (head.status == "waiting"), f"run {run}: its status is {head.status}, its log says otherwise"
    check_transition("running" if waits else "pending", head.status)


async def all_heads(store: Store) -> list[Head]:
    """Every run in the store."""
    return await store.list_heads(Query(limit=1_000_000))


def check_result(run: str, found: str, expected: str) -> None:
    """The final result equals that of the undisturbed run."""
    if found != expected:
        at = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), len(expected))
        here = slice(max(at - 40, 0), at + 40)
        raise AssertionError(f"run {run}: its result has …{found[here]}… instead of …{expected[here]}…")
