"""Part 3: power cuts. Real runs are traced, and crash images made of the trace are opened."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from holdfast import CheckpointPolicy, Pipeline, Runtime
from holdfast.errors import HoldfastError, StoreDamagedError
from holdfast.model import Claim, Commit, Entry, Head, Owner, Query, Reply
from holdfast.store.base import Store
from holdfast.store.files import FilesStore, anchors
from holdfast.store.locate import locate
from holdfast.store.sqlite import SqliteStore, wal

from . import steps
from .invariants import all_heads, check_log, check_result
from .stores import url
from .tracing import DatabaseDisk, Op, Trace, TracingVFS
from .tracing_files import FolderDisk, Watch

Durability = Literal["power", "process"]
STEPS = 12
CUTS_PER_TRACE = 100
RESUME_EVERY = 10


class Cuts:
    """What happened."""

    def __init__(self) -> None:
        self.cuts = self.acknowledged = self.resumed = self.traces = 0
        self.cuts_that_lost = self.lost = self.lost_at_most = self.damaged = 0
        self.seconds = 0.0

    def count(self, witnessed: Witnessed, lost: int) -> None:
        """Take in one cut."""
        self.cuts += 1
        self.acknowledged += sum(len(entries) for entries in witnessed.entries.values())
        self.lost += lost
        self.cuts_that_lost += lost > 0
        self.lost_at_most = max(self.lost_at_most, lost)


class Acknowledging(Store):
    """Writes into the trace what it has acknowledged, at the moment it does."""

    trace: Trace

    def _acknowledge(self, batch: Sequence[Commit], replies: list[Reply] | None) -> list[Reply] | None:
        for commit, reply in zip(batch, replies or (), strict=False):
            if reply.refused is None:
                for entry in commit.entries:
                    self.trace.append(Op("acknowledged", note=(commit.run, entry)))
        return replies

    def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        return self._acknowledge(batch, super().try_commit(batch, *how))

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        replies = await super().commit(batch)
        self._acknowledge(batch, replies)
        return replies

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        claims = await super().claim_runs(query, owner)
        for claim in claims:
            self.trace.append(Op("claimed", note=(claim.head.id, claim.head.fence)))
        return claims

    def beat(self, owner: Owner, lease: float) -> None:
        super().beat(owner, lease)
        self.trace.append(Op("beat"))


def flows(seed: int) -> list[tuple[str, Pipeline[Any], dict[str, Any], str]]:
    """The runs that are traced together: id, flow, input, what they must come to."""
    forgetful = CheckpointPolicy(keep_latest=2)
    return [
        ("small", steps.pipeline("small", STEPS), steps.first_state(seed), steps.expected(seed, STEPS)),
        (
            "retries",
            steps.pipeline("retries", STEPS, fails={3: 1}),
            steps.first_state(seed),
            steps.expected(seed, STEPS),
        ),
        (
            "forgetful",
            steps.pipeline("forgetful", STEPS, policy=forgetful),
            steps.first_state(seed, 3000),
            steps.expected(seed, STEPS, 3000),
        ),
    ]


class TracedSqlite(Acknowledging, SqliteStore):
    """A SQLite store that is traced."""


class TracedFiles(Acknowledging, FilesStore):
    """A store in files that is traced."""


def record(kind: str, seed: int, durability: Durability, folder: Path) -> Trace:
    """The trace of a few runs at once, the store closed and opened again in the middle."""
    chance = random.Random(f"trace/{seed}")
    folder.mkdir(parents=True)
    if kind == "file":
        watch = Watch(folder)
        files = TracedFiles(folder / "runs", durability=durability)
        files.trace = watch.trace
        # Anchors stand close together, so that many cuts hit one.
        with watch.installed(), mock.patch.multiple(anchors, EVERY=chance.choice([0, 1000]), AT_SEGMENT=0, SHARE=0):
            asyncio.run(_runs(files, seed, chance))
        return watch.trace
    vfs = TracingVFS()
    database = TracedSqlite(folder / "runs.db", durability=durability, vfs=vfs.name)
    database.trace = vfs.trace
    # The log is moved into the file often, so that many cuts hit a moment when that is under way.
    with mock.patch.object(wal, "MOVE_AT_PAGES", chance.choice([10, 40, 200, 1000])):
        asyncio.run(_runs(database, seed, chance))
    vfs.unregister()
    return vfs.trace


async def _runs(store: Store, seed: int, chance: random.Random) -> None:
    async with Runtime(store, grace=0.0) as rt:
        await rt.run(*flows(seed)[0][1:3], id="before")
        started = [await rt.start(flow, state, id=run) for run, flow, state, _ in flows(seed)]
        if chance.random() < 0.5:
            await started[0].result()
    async with Runtime(store, grace=0.0) as rt:
        await asyncio.gather(*(rt.run(flow, state, id=run) for run, flow, state, _ in flows(seed)))


def torture(
    kind: str,
    cuts: int,
    seed: int,
    folder: Path,
    *,
    durability: Durability = "power",
    progress: Callable[[Cuts], None] = lambda _: None,
) -> Cuts:
    """Cut the power `cuts` times. Raises AssertionError with the place when something is wrong.

    With durability="process" lost commits are counted instead: the last ones may be gone, but never more
    than the end of a log, and a SQLite file must be sound (of plain files, runs may be damaged, and say so).
    """
    figures, begun = Cuts(), time.perf_counter()
    image = folder / "image"
    while figures.cuts < cuts:
        number = seed * 1000 + figures.traces
        trace = record(kind, number, durability, folder / f"trace-{number}")
        chance, witnessed = random.Random(f"cuts/{number}"), Witnessed(kind, trace)
        share = min(CUTS_PER_TRACE, cuts - figures.cuts)
        for point in sorted(_point(trace, chance) for _ in range(share)):
            witnessed.play_to(point)
            witnessed.write_image(image, chance)
            try:
                lost = _count_lost(kind, durability, witnessed, image, figures)
                if lost is not None and figures.cuts % RESUME_EVERY == 0:
                    asyncio.run(_resume(kind, image, number))
                    figures.resumed += 1
            except (AssertionError, HoldfastError) as error:
                raise AssertionError(f"trace {number}, cut at {point} of {len(trace)}: {error}") from error
            shutil.rmtree(image)
            figures.count(witnessed, lost or 0)
            progress(figures)
        shutil.rmtree(folder / f"trace-{number}")
        figures.traces += 1
    figures.seconds = time.perf_counter() - begun
    return figures


def _count_lost(kind: str, durability: Durability, witnessed: Witnessed, image: Path, figures: Cuts) -> int | None:
    """How many acknowledged entries an image lacks; None for damage that may be."""
    try:
        lost, fence_fell = asyncio.run(witnessed.count_lost(image))
    except StoreDamagedError:
        if (kind, durability) != ("file", "process"):
            raise
        figures.damaged += 1
        return None
    if durability == "power":
        assert not lost, f"{lost} acknowledged entries are gone"
        assert not fence_fell, "a fence fell"
    return lost


def _point(trace: Trace, chance: random.Random) -> int:
    """Anywhere, or right after something was acknowledged, when most is at stake."""
    acknowledged = [at + 1 for at, op in enumerate(trace) if op.what == "acknowledged"]
    return chance.choice(acknowledged) if chance.random() < 0.5 else chance.randint(1, len(trace))


class Witnessed:
    """A trace as far as it was played: the disk, and what the program had been told by then."""

    def __init__(self, kind: str, trace: Trace) -> None:
        self._kind, self._trace, self._at = kind, trace, 0
        self._disk = DatabaseDisk() if kind == "sqlite" else FolderDisk()
        self.entries: dict[str, dict[int, Entry]] = {}
        self.fences: Counter[str] = Counter()
        self._has_owner = False

    def play_to(self, point: int) -> None:
        """Go on to that place of the trace."""
        for at in range(self._at, point):
            op = self._trace[at]
            self._disk.play(at, op)
            if op.what == "acknowledged":
                run, entry = op.note
                self.entries.setdefault(run, {})[entry.seq] = entry
            elif op.what == "claimed":
                run, fence = op.note
                self.fences[run] = fence
            self._has_owner = self._has_owner or op.what == "beat"
        self._at = point

    def write_image(self, folder: Path, chance: random.Random) -> None:
        """What a power cut at this moment might leave."""
        self._disk.write_image(folder, chance)
        if self._has_owner and self._kind == "sqlite":
            (folder / "runs.db-owners").touch()  # no part of the database, so it is in no trace

    async def count_lost(self, image: Path) -> tuple[int, bool]:
        """How many acknowledged entries are gone from an image, and whether a fence fell.

        Raises StoreDamagedError or AssertionError when it is not sound.
        """
        store = locate(url(self._kind, image))
        await store.open()
        try:
            problems = [text for _, text in await store.inspect() if "did not finish" not in text]
            if problems:
                raise StoreDamagedError(None, None, f"the store's own check found {problems}")
            heads = {head.id: head for head in await all_heads(store)}
            for head in heads.values():
                self._check_run(head, await store.read_entries(head.id))
        finally:
            await store.close()
        last = {run: head.seq for run, head in heads.items()}
        lost = sum(seq > last.get(run, 0) for run, entries in self.entries.items() for seq in entries)
        return lost, any(run not in heads or heads[run].fence < fence for run, fence in self.fences.items())

    def _check_run(self, head: Head, entries: list[Entry]) -> None:
        drops_history = head.id == "forgetful"
        check_log(head, entries, whole=not drops_history)
        found = {entry.seq: entry for entry in entries}
        for seq, entry in self.entries.get(head.id, {}).items():
            same = found.get(seq) == entry or seq > head.seq or drops_history
            assert same, f"{head.id}@{seq} is another one than was acknowledged"


async def _resume(kind: str, image: Path, seed: int) -> None:
    """Everything goes on from what is left, to the result of the undisturbed run."""
    async with Runtime(url(kind, image), durability="process") as rt:
        for run, flow, state, expected in flows(seed):
            check_result(run, repr(await rt.run(flow, state, id=run)), expected)
