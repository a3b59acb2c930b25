"""One run as a store holds it in memory, and what each operation does to it.

The stores that keep no database do all their work here: the memory store, the files store, a
user's own. `Ledger` is what must be known of a run to accept or refuse a write; `RunRecord` holds
the log as well. Neither does any I/O, and both can be encoded with msgspec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec
from msgspec.structs import replace

from holdfast.model import Claim, Commit, Entry, Head, Mail, Posted, Refusal, Reply


class Ledger(msgspec.Struct):
    """A run without its log: enough to accept or refuse a write and to answer for its head."""

    head: Head
    first: int = 1
    """The seq of the oldest entry in the log."""
    inbox: list[Mail] = []
    used: set[str] = set()
    """Every key that mail ever had in the life of this run."""
    last_mail: int = 0

    @classmethod
    def create(cls, commit: Commit) -> Self:
        """A new run as `commit.create` describes it, with the commit applied."""
        assert commit.create is not None
        record = cls(replace(commit.create, owned=False))
        record.apply(commit)
        return record

    def copy(self) -> Self:
        """A record that can be changed without changing this one; the keys used so far are shared."""
        return replace(self, inbox=list(self.inbox))

    def apply(self, commit: Commit) -> None:
        """Do what the commit says. It must not have been refused."""
        head = self.head
        fields = commit.change.fields() if commit.change else {}
        last = commit.entries[-1] if commit.entries else None
        if commit.rebase is not None:
            self.first = commit.rebase.seq
            if commit.rebase.seq == (last.seq if last else head.seq):
                last = commit.rebase
        if last is not None:
            fields |= {"seq": last.seq, "cursor": last.cursor, "updated_at": last.at}
        if fields:
            self.head = replace(head, **fields)
        if commit.take:
            self.inbox = [mail for mail in self.inbox if mail.id not in commit.take]

    def take_over(self, owner: str) -> None:
        """Make `owner` the owner, with a fence and an attempt one higher."""
        head = self.head
        self.head = replace(head, owner=owner, fence=head.fence + 1, attempt=head.attempt + 1)

    def stamp(self, mail: Mail, at: float) -> Mail | Posted:
        """The mail as it goes into this inbox, or DUPLICATE; `receive` puts it there."""
        if mail.key is not None and mail.key in self.used:
            return Posted.DUPLICATE
        return replace(mail, id=self.last_mail + 1, at=at)

    def receive(self, mail: Mail) -> None:
        """Put stamped mail into the inbox."""
        self.inbox.append(mail)
        self.last_mail = max(self.last_mail, mail.id)
        if mail.key is not None:
            self.used.add(mail.key)


class RunRecord(Ledger):
    """A whole run: head, log and inbox."""

    entries: list[Entry] = []

    def apply(self, commit: Commit) -> None:
        """Do what the commit says. It must not have been refused."""
        super().apply(commit)
        self.entries.extend(commit.entries)
        if commit.rebase is not None:
            self.entries = [commit.rebase, *(e for e in self.entries if e.seq > commit.rebase.seq)]

    def read(self, after: int = 0, upto: int | None = None, limit: int | None = None) -> list[Entry]:
        """The entries with after < seq <= upto; at most the first `limit`."""
        start = max(after + 1 - self.first, 0)  # the log has no gaps, so a seq is a place in the list
        end = len(self.entries) if upto is None else max(upto + 1 - self.first, 0)
        found = self.entries[start:end]
        return found if limit is None else found[: max(limit, 0)]

    def claim(self, owner: str) -> Claim:
        """Make `owner` the owner and give all that is needed to go on."""
        self.take_over(owner)
        return Claim(self.head, tuple(self.read(self.head.base - 1)), tuple(self.inbox))


def refusal(record: Ledger | None, commit: Commit) -> Refusal | None:
    """Why this commit must not be written to that run (None: there is no such run), or None to accept it."""
    if commit.create is not None and record is not None:
        return Refusal.EXISTS
    head = commit.create or (record and record.head)
    if not head or (head.owner, head.fence) != (commit.owner, commit.fence):
        return Refusal.STALE
    first, last = (record.first, record.head.seq) if record else (1, 0)
    if record is None and not commit.entries:
        return Refusal.GAP
    for entry in commit.entries:
        if entry.seq != last + 1:
            return Refusal.GAP
        last = entry.seq
    if commit.rebase is not None and not first <= commit.rebase.seq <= last:
        return Refusal.GAP
    if commit.heard is not None and record is not None and any(mail.id > commit.heard for mail in record.inbox):
        return Refusal.UNHEARD
    return None


def decide(record: Ledger | None, commits: Sequence[Commit]) -> tuple[list[Reply], list[Commit], Ledger | None]:
    """What becomes of commits of one run, in order, without touching `record`.

    Gives a reply for each, those that have something to write, and the run as they leave it.
    """
    after = record and record.copy()
    replies: list[Reply] = []
    accepted: list[Commit] = []
    for commit in commits:
        if refused := refusal(after, commit):
            replies.append(Reply(refused))
            continue
        if after is None:
            after = Ledger.create(commit)
        else:
            after.apply(commit)
        replies.append(Reply(None, tuple(after.inbox)))
        if not is_empty(commit):
            accepted.append(commit)
    return replies, accepted, after


def is_empty(commit: Commit) -> bool:
    """Whether the commit writes nothing and only asks for the mail."""
    return not (commit.entries or commit.create or commit.change or commit.take or commit.rebase)


def may_claim(head: Head, owner: str) -> bool:
    """Whether `owner` may take this run: nobody has it, its owner is dead, or it is the claimer's own."""
    return head.owner is None or head.owner == owner or not head.owned
