"""The Store contract on plain files, one folder per run."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, TypeVar

from holdfast.clock import Clock, SystemClock
from holdfast.core.query import counts, matches, select
from holdfast.core.record import decide, may_claim
from holdfast.errors import StoreDamagedError, StoreError, UsageError
from holdfast.model import Claim, Commit, Entry, Head, Mail, Owner, Posted, Query, Refusal, Reply
from holdfast.store.base import Store
from holdfast.store.changes import Changes
from holdfast.store.files.claiming import PassedOverError, claim_all
from holdfast.store.files.disk import MOMENT, Disk, LockTakenError, locked_folder, translated
from holdfast.store.files.folder import RunFolder
from holdfast.store.files.leases import Leases
from holdfast.store.files.looking import named
from holdfast.store.files.root import clean_up, flocked, last_change, list_runs, list_strangers, note_change, open_root
from holdfast.store.files.runs import Runs, as_seen
from holdfast.store.files.view import INBOX, LOG, View

T = TypeVar("T")
Durability = Literal["power", "process"]
_POLL = (0.002, 0.05)  # seconds between looks for changes by other processes: at first, and after a while


class FilesStore(Store):
    """Runs in a folder that several processes on one machine may use at once.

    Each run has a folder of its own with a log and an inbox in JSON lines that a person can read. Every
    line has a checksum. A write that power loss cut short is cut off by the next one and told by
    `inspect`. A run that is damaged otherwise raises StoreDamagedError when it is read, is left out of
    lists and claims with one warning in the log, and its commits are refused as STALE when others are in
    the same batch. Its head is read from the last anchor in the log on: damage before that is told to those who
    read the entries there, and by `inspect`.

    `durability="power"`: what is committed survives power loss. `durability="process"`: it survives the
    process, but a power cut may take back the last commits or damage the runs that were written last.
    """

    capabilities = frozenset({"durable", "shared", "inline"})
    most_together = 1 << 30

    def __init__(
        self, root: str | os.PathLike[str], *, clock: Clock | None = None, durability: Durability = "power"
    ) -> None:
        if durability not in ("power", "process"):
            raise UsageError(f"durability is 'power' or 'process', not {durability!r}")
        self.path = Path(os.path.abspath(root))
        self._clock = clock or SystemClock()
        self._disk = Disk(durable=durability == "power")
        self._begin()

    def _begin(self) -> None:
        """Know nothing yet: at first, and in a forked child, which inherits locks that may be held but no threads."""
        self._pid = os.getpid()
        self._leases = Leases(self.path, self._clock)
        self._lock = threading.Lock()  # guards all that follows
        self._opened: tuple[int, ThreadPoolExecutor] | None = None
        self._runs = Runs(self._disk, self._root)
        self._changes = Changes()

    # Opening and closing

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        self._notice_fork()
        with self._lock, translated(self.path):
            if self._opened is None:
                root = open_root(self.path, self._disk)
                clean_up(root)
                self._opened = (root, ThreadPoolExecutor(1, "holdfast-files"))

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._notice_fork()
        with self._lock:
            opened, self._opened = self._opened, None
            self._runs.forget()
        if opened is not None:
            opened[1].shutdown()
            os.close(opened[0])
            self._leases.let_go()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            was_open = self._opened is not None
            self._begin()
            if was_open:
                self._open()

    def _here(self) -> tuple[int, ThreadPoolExecutor]:
        """The open root and the store's own thread, in this very process."""
        self._notice_fork()
        if self._opened is None:
            raise StoreError(f"the store at {self.path} is not open")
        return self._opened

    def _root(self) -> int:
        return self._here()[0]

    async def _do(self, work: Callable[[], T]) -> T:
        """Do blocking work on the store's own thread, under its lock."""

        def locked() -> T:
            with self._lock, translated(self.path):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._here()[1], locked)

    # Writing

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        return await self._do(lambda: self._commit(batch))

    def try_commit(self, batch: Sequence[Commit], introducing: tuple[Owner, float] | None = None) -> list[Reply] | None:
        self._here()
        # Each run takes a sync of its own, so several of them are better done elsewhere; and who lives is written in a
        # file of its own, which no commit can take along.
        if introducing is not None or len({commit.run for commit in batch}) > 1:
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            with translated(self.path):
                return self._commit(batch, patience=0.0)
        except BlockingIOError:
            return None
        finally:
            self._lock.release()

    def _commit(self, batch: Sequence[Commit], patience: float | None = None) -> list[Reply]:
        places: dict[str, list[int]] = {}
        for place, commit in enumerate(batch):
            places.setdefault(commit.run, []).append(place)
        replies: dict[int, Reply] = {}
        for run, its in places.items():
            commits = [batch[place] for place in its]
            try:
                found = self._commit_run(run, commits, patience)
            except StoreDamagedError:
                if len(places) == 1:
                    raise
                # The other runs go on, and whoever reads this one is told.
                found = [Reply(Refusal.EXISTS if commit.create else Refusal.STALE) for commit in commits]
            replies.update(zip(its, found, strict=True))
        return [replies[place] for place in range(len(batch))]

    def _commit_run(self, run: str, commits: Sequence[Commit], patience: float | None) -> list[Reply]:
        while True:
            with self._runs.locked(run, patience) as found:
                known, folder = found or (RunFolder(run, self._disk), None)
                replies, accepted, after = decide(known.ledger if found else None, commits)
                if not accepted or after is None:
                    return replies
                if folder is not None:
                    self._runs.note_cut(known, LOG)
                    known.write_commits(folder, accepted, after)
                    self._note()
                    return replies
            log = known.new_log(accepted, after, [])
            if self._disk.create_folder(self._root(), known.name, LOG, log, "commit"):
                self._note()
                return replies
            # Somebody else made the run meanwhile: decide again.

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        return await self._do(lambda: self._claim(query, owner))

    def _claim(self, query: Query, owner: str) -> list[Claim]:
        # Limits hold over all runs: whoever counts them keeps the others from claiming meanwhile.
        with flocked(self._root()) if query.limits else nullcontext():
            return self._claim_all(query, owner)

    def _claim_all(self, query: Query, owner: str) -> list[Claim]:
        live = self._leases.live()

        def claim(run: str) -> Claim | None:
            try:
                return self._claim_run(run, query, owner, live)
            except StoreDamagedError as error:
                if query.ids == (run,):  # who asks for this very run is told
                    raise
                self._runs.leave_out(run, error)
                raise PassedOverError from None
            except LockTakenError:
                if query.ids is not None:
                    raise
                raise PassedOverError from None

        return claim_all(self._runs.heads(query, live), query, owner, claim)

    def _claim_run(self, run: str, query: Query, owner: str, live: frozenset[str]) -> Claim | None:
        with self._runs.locked(run, MOMENT if query.ids is None else None) as found:
            if found is None:
                return None
            known, folder = found
            # Somebody else may have claimed or changed it since it was listed, also one who was not alive yet then.
            if known.ledger.head.owner is not None:
                live = self._leases.live()
            before = as_seen(known.ledger.head, live)
            if not may_claim(before, owner) or not matches(before, query, counts(known.ledger.inbox, query)):
                return None
            entries = known.read_entries(View(folder), before.base - 1)  # when they are damaged, nothing is written
            after = known.ledger.copy()
            after.take_over(owner)
            self._runs.note_cut(known, LOG)
            known.write_claim(folder, after)
            self._note()
            return Claim(as_seen(after.head, live), tuple(entries), tuple(after.inbox))

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        return await self._do(lambda: self._post(run, mail))

    def _post(self, run: str, mail: Mail) -> Posted:
        with self._runs.locked(run) as found:
            if found is None:
                return Posted.NO_RUN
            known, folder = found
            stamped = known.ledger.stamp(mail, self._clock.now())
            if isinstance(stamped, Posted):
                return stamped
            self._runs.note_cut(known, INBOX)
            known.write_mail(folder, stamped)
            self._note()
            return Posted.ACCEPTED

    async def delete_run(self, run: str) -> bool:
        return await self._do(lambda: self._delete(run))

    def _delete(self, run: str) -> bool:
        live, known = self._leases.live(), RunFolder(run, self._disk)
        with named(run), locked_folder(self._root(), known.name, exclusive=True) as folder:
            if folder is None:
                return False
            try:
                with named(run):
                    known.catch_up(View(folder))
            except StoreDamagedError:
                pass  # it can be deleted all the same, unless the owner it had last is alive
            if known.ledger.head.owner in live:
                return False
            self._disk.delete_folder(self._root(), known.name)
            self._runs.forget(run)
            self._note()
            return True

    # Reading

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        def work() -> list[Head | None]:
            live = self._leases.live()
            return [found and as_seen(found[0], live) for found in (self._runs.head(run) for run in ids)]

        return await self._do(work)

    async def list_heads(self, query: Query) -> list[Head]:
        return await self._do(lambda: select(self._runs.heads(query, self._leases.live()), query))

    async def read_entries(
        self, run: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        def work() -> list[Entry]:
            return self._runs.look(run, lambda known, view: known.read_entries(view, after, upto, limit)) or []

        return await self._do(work)

    async def inspect(self) -> list[tuple[str | None, str]]:
        def work() -> list[tuple[str | None, str]]:
            # Without the store's lock: it reads everything, and commits must not wait for that.
            with translated(self.path):
                root = self._root()
                problems: list[tuple[str | None, str]] = [
                    (None, f"{name!r} is not the folder of a run") for name in list_strangers(root)
                ]
                return problems + [found for run in sorted(list_runs(root)) for found in self._runs.inspect(root, run)]

        return list(self._runs.cut) + await asyncio.to_thread(work)

    # Owners and changes

    def beat(self, owner: Owner, lease: float) -> None:
        self._notice_fork()
        with translated(self.path):
            self._leases.beat(owner, lease)

    async def retire_owner(self, owner: str) -> None:
        def work() -> None:
            self._leases.retire(owner)
            self._note()

        await self._do(work)

    async def list_owners(self) -> list[Owner]:
        return await self._do(self._leases.owners)

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + timeout, _POLL[0]
        while True:
            here = self._changes.count
            with translated(self.path):
                now, left = last_change(self._root()), deadline - loop.time()
            if now != seen or left <= 0:
                return now
            await self._changes.wait(here, min(pause, left))  # one of this process ends it at once
            pause = min(pause * 1.5, _POLL[1])

    def _note(self) -> None:
        note_change(self._root())
        self._changes.note()
