"""A batch of commits as it is handed to whoever writes it: how it can be written, and what its statements bind.

It is made ready by the thread that has the commits, which they are near to: one that writes at the same time as
another wants Python gets in its way, and what both touch goes from one processor to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import msgspec

from holdfast.model import Commit, HeadChange
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.pages import Room

_NO_CHANGE = (None, HeadChange())
Updates = dict[tuple[str, ...], list[Any]]


class Batch(msgspec.Struct, gc=False):
    """The commits, and what they bind when all of them are accepted."""

    commits: Sequence[Commit]
    steps: bool = False
    """Whether they are usual steps, which one statement writes."""
    plain: bool = False
    """Whether the number of rows that they write tells whether all were accepted."""
    entries: list[Any] = []
    """What `append` binds for their entries."""
    created: list[Any] = []
    """What `create_runs` binds for the new runs."""
    updates: Updates = {}
    """What `update_runs` binds for each set of fields of heads."""

    @property
    def owner(self) -> str:
        """Who writes them, where they are steps or plain."""
        return self.commits[0].owner


def make_ready(commits: Sequence[Commit], room: Room) -> Batch:
    """The batch of these commits."""
    if not (len(commits) == 1 or (commits and _are_apart(commits))):
        return Batch(commits)
    if len(commits) <= sql.MOST_STEPS and _are_steps(commits):
        return Batch(commits, steps=True, entries=entry_values(commits, room))
    if not all(map(_is_plain, commits)):
        return Batch(commits)
    return Batch(
        commits,
        plain=True,
        entries=entry_values(commits, room),
        created=[*chain.from_iterable(sql.head_values(one.create) for one in commits if one.create is not None)],
        updates=updates_of(commits),
    )


def _are_apart(commits: Sequence[Commit]) -> bool:
    """Whether each is of another run, and all of one owner. What one commit of a run writes decides about its next."""
    owner = commits[0].owner
    return len({commit.run for commit in commits if commit.owner == owner}) == len(commits)


def _are_steps(commits: Sequence[Commit]) -> bool:
    """Whether all are usual commits: one entry and nothing else."""
    for commit in commits:
        if len(commit.entries) != 1 or commit.change is not None or commit.create is not None:
            return False
        if commit.take or commit.rebase is not None or commit.heard is not None:
            return False
    return True


def _is_plain(commit: Commit) -> bool:
    """Whether the number of rows that it writes tells whether it was accepted."""
    entries = commit.entries
    if commit.rebase or commit.take or not entries or (commit.create is not None and entries[0].seq != 1):
        return False
    if commit.heard is not None and commit.change in _NO_CHANGE:
        return False  # what is changed of a head is what looks at the mail
    return len(entries) == 1 or all(after.seq == before.seq + 1 for before, after in pairwise(entries))


def entry_values(commits: Sequence[Commit], room: Room) -> list[Any]:
    """What `append` binds for the entries of these commits; for one whose body is split, two rows."""
    values: list[Any] = []
    places = iter(room.lay_out([entry for commit in commits for entry in commit.entries]))
    for commit in commits:
        run, fence, entries = commit.run, commit.fence, commit.entries
        after = entries[0].seq - 1 if commit.create is None and entries else None
        for e, at in zip(entries, places):  # noqa: B905 - the places of all of them, one after the other
            body, begun = e.body, 0
            if at:
                values += (run, fence, after, None, "", 0, b"", "", 0, body[:at])
                body, begun = body[at:], 1
            values += (run, fence, after, e.seq, e.kind, e.at, e.cursor, e.check, begun, body)
    return values


def updates_of(commits: Sequence[Commit]) -> Updates:
    """What is changed of heads: what `update_runs` binds for each set of fields."""
    updates: Updates = {}
    for commit in commits:
        changes = commit.change.fields() if commit.change is not None else None
        if changes:
            values = updates.setdefault(tuple(changes), [])
            values += sql.change_values(changes)
            values += (commit.run, commit.fence, commit.heard)
    return updates
