"""Looks at a run without keeping others from writing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from holdfast.errors import StoreDamagedError
from holdfast.store.files.disk import NotPlainError, locked_folder
from holdfast.store.files.folder import RunFolder
from holdfast.store.files.view import View

T = TypeVar("T")


def look(root: int, known: RunFolder, work: Callable[[View], T]) -> T | None:
    """What `work` makes of a run that has been caught up with; None when there is no such run.

    The lock is held for the moment in which the files are opened, however long it takes to read them: locks of many
    readers would overlap, and the owner of the run would wait for ever. Raises StoreDamagedError.
    """
    with ExitStack() as stack:
        with named(known.run), locked_folder(root, known.name, exclusive=False) as folder:
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
    with named(known.run), locked_folder(root, known.name, exclusive=False) as folder:
        if folder is None:
            return None
        view = View(folder)
        known.catch_up(view)
        return work(view)


@contextmanager
def named(run: str) -> Iterator[None]:
    """Say of which run it is when something else stands where its folder or a file of it should be."""
    try:
        yield
    except NotPlainError as error:
        raise StoreDamagedError(run, None, str(error)) from None
