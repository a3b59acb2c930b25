"""Looks at a run without keeping others from writing it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from holdfast.errors import StoreDamagedError
from holdfast.store.files.disk import NotPlainError, locked_folder, open_folder
from holdfast.store.files.folder import RunFolder
from holdfast.store.files.view import View

T = TypeVar("T")


def look(root: int, known: RunFolder, work: Callable[[View], T], patience: float | None = None) -> T | None:
    """What `work` makes of a run that has been caught up with; None when there is no such run.

    The lock is held for the moment in which the files are opened, however long it takes to read them: locks of many
    readers would overlap, and the owner of the run would wait for ever. Raises StoreDamagedError, and LockTakenError
    when somebody does not let go of it.
    """
    with ExitStack() as stack:
        with named(known.run), locked_folder(root, known.name, exclusive=False, patience=patience) as folder:
            if folder is None:
                return None
            view = stack.enter_context(View(folder))
            view.keep()
        if known.is_current(view):
            return work(view)
        try:
            known.catch_up(view)
            return work(view)
        except StoreDamagedError:
            pass
    # A torn tail that somebody wrote over while it was read looks like damage: that is judged with the lock alone.
    with named(known.run), locked_folder(root, known.name, exclusive=False, patience=patience) as folder:
        if folder is None:
            return None
        view = View(folder)
        known.catch_up(view)
        return work(view)


def is_unchanged(root: int, known: RunFolder) -> bool:
    """Whether a run is still what is known of it. That takes no lock: whatever was written since changed a stamp."""
    if not known.begun:
        return False
    with named(known.run):
        folder = open_folder(root, known.name)
        if folder is None:
            return False
        try:
            return known.is_current(View(folder))
        finally:
            os.close(folder)


def glance(root: int, new: RunFolder) -> RunFolder | None:
    """What can be read of a run while somebody does not let go of its lock; None when that is nothing.

    Everything that counts as written is there. So may be what a writer has not flushed yet: hence it is not
    remembered, and nothing is built on it without the lock.
    """
    with named(new.run):
        if (folder := open_folder(root, new.name)) is None:
            return None
        try:
            with View(folder) as view:
                view.keep()
                new.catch_up(view)
                return new
        except (FileNotFoundError, StoreDamagedError):  # it was replaced or deleted just now; who has the lock can tell
            return None
        finally:
            os.close(folder)


@contextmanager
def named(run: str) -> Iterator[None]:
    """Say of which run it is when something else stands where its folder or a file of it should be."""
    try:
        yield
    except NotPlainError as error:
        raise StoreDamagedError(run, None, str(error)) from None
