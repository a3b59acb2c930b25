"""The runs of a store in files, as far as they are known here: found, looked at, locked to be written."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.query import Mailed
from holdfast.errors import InvalidIdError, StoreDamagedError
from holdfast.model import Head, Query
from holdfast.store.files.disk import MOMENT, Disk, LockTakenError, locked_folder
from holdfast.store.files.folder import RunFolder
from holdfast.store.files.looking import glance, is_unchanged, look, named
from holdfast.store.files.root import list_runs
from holdfast.store.files.view import INBOX, LOG, View

log = logging.getLogger("holdfast")
T = TypeVar("T")


class Runs:
    """Belongs to one store, under whose lock all of it is used, except `inspect`."""

    def __init__(self, disk: Disk, root: Callable[[], int]) -> None:
        """`root` gives the open folder of the store."""
        self._disk, self._root = disk, root
        self._folders: dict[str, RunFolder] = {}
        self.cut: deque[tuple[str | None, str]] = deque(maxlen=1000)
        """The torn tails that were cut off here."""
        self._told: set[str] = set()
        """Damaged runs that somebody knows of."""

    def forget(self, run: str | None = None) -> None:
        """Know nothing any more of a run that is gone, or of any."""
        if run is None:
            self._folders.clear()
        else:
            self._folders.pop(run, None)

    def heads(self, query: Query, live: frozenset[str]) -> Iterator[Mailed]:
        """The heads that a query may mean, with their mail; damaged runs are left out."""
        if query.ids is None or query.in_turn:
            runs = list_runs(self._root())
            for run in set(self._folders).difference(runs):
                del self._folders[run]
        else:
            runs = sorted(set(query.ids))
        for run in runs:
            try:
                found = self.head(run, MOMENT)
            except LockTakenError:  # one who stops while it writes must not stop those who list
                seen = glance(self._root(), RunFolder(run, self._disk))
                found = None if seen is None else _summary(seen)
            except InvalidIdError:
                continue
            except StoreDamagedError as error:
                self.leave_out(run, error)
                continue
            if found is not None:
                yield as_seen(found[0], live), found[1]

    def leave_out(self, run: str, error: StoreDamagedError) -> None:
        """Say once in the log that a run is damaged, unless somebody was told otherwise."""
        if run not in self._told:
            self._told.add(run)
            log.warning("holdfast: left out: %s", error)

    def head(self, run: str, patience: float | None = None) -> Mailed | None:
        """The head of a run, with its mail; None when there is no such run."""
        known = self._known(run)
        if is_unchanged(self._root(), known):
            return _summary(known)
        return self.look(run, _summary, patience)

    def _known(self, run: str) -> RunFolder:
        if (known := self._folders.get(run)) is None:
            known = self._folders[run] = RunFolder(run, self._disk)
        return known

    def look(self, run: str, work: Callable[[RunFolder, View], T], patience: float | None = None) -> T | None:
        """What `work` makes of the run as it stands; None when there is no such run."""
        known = self._known(run)
        found = look(self._root(), known, lambda view: work(known, view), patience)
        if found is None:
            del self._folders[run]
        return found

    @contextmanager
    def locked(self, run: str, patience: float | None = None) -> Iterator[tuple[RunFolder, int] | None]:
        """The run as it stands and its open folder, locked to be written; None when there is no such run."""
        known = self._known(run)
        with named(run), locked_folder(self._root(), known.name, exclusive=True, patience=patience) as folder:
            if folder is None:
                del self._folders[run]
                yield None
            else:
                known.catch_up(View(folder))
                yield known, folder

    def note_cut(self, known: RunFolder, file: str) -> None:
        """Remember that what is written next cuts off a torn tail."""
        if torn := known.torn(file):
            self.cut.append((known.run, f"{file}: {torn} bytes of a write that did not finish were cut off"))

    def inspect(self, root: int, run: str) -> list[tuple[str | None, str]]:
        """What is wrong with a run that is read from its beginning."""
        known = RunFolder(run, self._disk, whole=True)
        try:
            look(root, known, lambda _: None)
        except StoreDamagedError as error:
            self._told.add(run)
            return [(run, error.problem if error.seq is None else f"{error.problem} (at seq {error.seq})")]
        torn = "ends with {} bytes of a write that did not finish; the next write cuts them off"
        return [(run, f"{file} {torn.format(known.torn(file))}") for file in (LOG, INBOX) if known.torn(file)]


def _summary(known: RunFolder, _: View | None = None) -> Mailed:
    return known.ledger.head, known.ledger.inbox


def as_seen(head: Head, live: frozenset[str]) -> Head:
    """The head with whether its owner is alive."""
    return replace(head, owned=True) if head.owner in live else head
