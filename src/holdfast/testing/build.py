"""Short ways to write down heads, entries and commits in a test of a store."""

from __future__ import annotations

from typing import Any

from holdfast.model import Commit, Entry, Head, HeadChange, Owner

ALICE = "a11ce0000000001"
BOB = "b0b000000000001"
CAROL = "ca501000000000f"


def owner(id: str = ALICE) -> Owner:
    """An owner as a runtime describes itself to a store."""
    return Owner(id, f"host-of-{id[:5]}:4711")


def entry(seq: int, **fields: Any) -> Entry:
    """An entry with a content of its own; any field can be given."""
    given: dict[str, Any] = {
        "kind": "checkpoint",
        "fence": 1,
        "at": 1000.0 + seq,
        "cursor": b'{"next":"step-%d"}' % seq,
        "body": b'{"state":%d}' % seq,
        "check": f"check-{seq}",
    }
    return Entry(seq=seq, **(given | fields))


def head(id: str = "run", **fields: Any) -> Head:
    """The head of a new run that ALICE owns; any field can be given."""
    given: dict[str, Any] = {"flow": "flow", "status": "running", "owner": ALICE, "fence": 1, "created_at": 1000.0}
    return Head(id=id, **(given | fields))


def create(id: str = "run", **fields: Any) -> Commit:
    """The commit that makes a new run with its first entry; `fields` are those of its head.

    With owner=None, ALICE makes the run and gives it up in the same commit.
    """
    given_up = fields.get("owner", ALICE) is None
    new = head(id, **(fields | {"owner": ALICE} if given_up else fields))
    first = entry(1, kind="created", fence=new.fence, at=new.created_at)
    change = HeadChange(owner=None) if given_up else None
    return Commit(run=id, owner=new.owner or ALICE, fence=new.fence, create=new, entries=(first,), change=change)


def commit(run: str, *seqs: int, **fields: Any) -> Commit:
    """ALICE's commit of entries with these seqs under fence 1; any field can be given."""
    given: dict[str, Any] = {"owner": ALICE, "fence": 1}
    given |= fields
    entries = tuple(entry(seq, fence=given["fence"]) for seq in seqs)
    return Commit(run=run, **({"entries": entries} | given))
