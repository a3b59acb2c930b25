"""The Store contract: what the runtime asks of a database.

Each method is one transaction: it happens wholly or not at all, and once it returns the effect
survives power loss (as far as the store's declared durability goes). A store never looks into a
cursor, a body or a state, and never decides anything: which transition is allowed, which run is
taken up and what is retried is the engine's business.

`holdfast.testing.StoreContract` is the suite that every store passes.

When a method raises StoreError, each part of what it was to do may or may not have happened: a
reply can be lost on the way. The caller reads, or claims again. Texts hold neither U+0000 nor lone
surrogates, times are finite, limits are not negative. All methods but `beat` and `try_commit` belong to
the event loop that opened the store; a closed store may be opened again.

Ownership. `beat` says that an owner lives. A run may be claimed when nobody owns it, when its
owner is dead, or when the claimer owns it already. A claim raises the run's fence, and from then on
every commit that names an older fence or another owner is refused. Leases only save time: the
fence is what makes it safe. A store measures leases with its own clock, never with the caller's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.model import Claim, Commit, Entry, Head, Mail, Owner, Posted, Query, Reply


class Store(ABC):
    """What the runtime asks of a database. Errors of the driver appear as StoreError."""

    capabilities: frozenset[str] = frozenset()
    """What this store does beyond the contract, of: durable, shared, inline.

    durable: what is committed survives the process. shared: several processes may use it at once.
    inline: `try_commit` works, so one commit needs no change of thread.
    """

    most_together = 125
    """How many commits a batch has at most. The store works on one batch while the loop prepares the next: with smaller
    ones they work side by side, with larger ones more commits share what a batch costs."""

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready: create it, or bring its schema up to date. Opening twice equals once.

        Raises StoreVersionError, with the store unchanged, when a newer Holdfast wrote it.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. Closing twice equals once."""

    @abstractmethod
    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        """Write each commit wholly or refuse it, and give one reply per commit, in order.

        A refused commit leaves the others of the batch untouched. An accepted one is durable when
        this returns; when it raises instead, none of the batch is counted as done. Several commits of
        one run in a batch are applied in order. A commit
        - with `create` is refused (EXISTS) when the id is taken;
        - is refused (STALE) unless the run, or the head in `create`, has this owner and fence;
        - is refused (GAP) unless the seqs of its entries follow one another and the last one in the log (a
          new log has an entry and begins at 1), and unless `rebase` names an entry that is in the log or
          in this commit;
        - is refused (UNHEARD) when mail waits whose id is above `heard`. Whoever posts mail and then reads a head in
          which such a commit has not been done yet knows that it will be refused.
        An empty commit writes nothing: it asks for the mail and whether the fence still holds. The mail in the
        reply is that after this commit or after the batch.
        """

    def try_commit(self, batch: Sequence[Commit], introducing: tuple[Owner, float] | None = None) -> list[Reply] | None:
        """Do what `commit` does on this very thread, or give None when that could mean waiting.

        `introducing` is an owner with its lease: what `beat` does is then done by the same transaction, and not at all
        when every commit is refused. None means that nothing was written. Stores that have to wait for a network keep
        this default.
        """
        return None

    @abstractmethod
    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        """Make `owner` the owner of the runs that match and may be claimed, at most `query.limit`.

        Each gets a fence one higher and an attempt one higher; nothing else of it changes. A run that
        a live owner other than `owner` has is left out. With `query.ids` no other is left out; without,
        one that is being written at this moment may be. With `query.in_turn` the order is that of
        `holdfast.core.turns`, and `query.limits` hold over all who claim at the same time.
        """

    @abstractmethod
    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        """The heads of these runs in the same order; None for what is not there."""

    @abstractmethod
    async def list_heads(self, query: Query) -> list[Head]:
        """The heads that match, newest first (created_at, then id by its bytes, descending).

        Metadata that is no JSON object any more matches: whoever looks at that run is told.
        """

    @abstractmethod
    async def read_entries(
        self, run: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The entries of a run with after < seq <= upto, in order; at most the first `limit`."""

    @abstractmethod
    async def post_mail(self, run: str, mail: Mail) -> Posted:
        """Put mail into a run's inbox; `mail.id` and `mail.at` are given by the store.

        Ids rise in the order in which the mail of a run becomes visible.

        Mail with a key is accepted once in the life of a run: DUPLICATE ever after, also when the first
        has been taken.
        """

    @abstractmethod
    async def delete_run(self, run: str) -> bool:
        """Remove a run with its log and inbox unless a live owner has it. False when it was not removed."""

    @abstractmethod
    def beat(self, owner: Owner, lease: float) -> None:
        """Say that `owner` is alive for `lease` seconds from now on the store's clock.

        Blocking, and safe to call from any thread: heartbeats do not depend on an event loop. Gives up with
        StoreError well before the lease runs out.
        """

    @abstractmethod
    async def retire_owner(self, owner: str) -> None:
        """Say that `owner` is gone: what it still owns may be claimed at once."""

    @abstractmethod
    async def list_owners(self) -> list[Owner]:
        """The owners that the store knows, dead ones included until they are cleaned up."""

    @abstractmethod
    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        """Return when something may have changed since `seen` was returned, or after `timeout` seconds.

        With `ready` only what may let more be claimed need wake: a run that nobody owns (any more), mail, an
        owner that retired. What is seen with `ready` and without are two different counts.

        Give the result to the next call; begin with 0, which returns at once. It may return for nothing,
        and callers look again after the timeout anyway: this only saves time. A commit that is empty or
        refused is no change.
        """

    @abstractmethod
    async def inspect(self) -> list[tuple[str | None, str]]:
        """The problems of the store's own structure as (run or None, what is wrong); changes nothing."""
