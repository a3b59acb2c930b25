"""Which checkpoints of a run stay: hidden at once below its floor, dropped when that is worth it.

A checkpoint may depend on older entries of its segment. So what retention lets go is first put
below the head's `floor`, where nobody sees it any more, and really dropped when a full snapshot
at the oldest kept checkpoint frees at least half of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.durations import seconds
from holdfast.core.history import last_point, read_body, rebased
from holdfast.core.policy import CheckpointPolicy, oldest_kept
from holdfast.model import CHECKPOINT_KINDS, Entry
from holdfast.store.base import Store

_WORTH_BYTES = 4096


class Retention:
    """Keeps account of a live run's log. Only runs whose policy drops something have one."""

    def __init__(self, policy: CheckpointPolicy, entries: Iterable[Entry]) -> None:
        self._policy = policy
        self._log: list[tuple[int, float, int, bool]] = []
        self._again_at = _WORTH_BYTES
        self.added(entries)

    def added(self, entries: Iterable[Entry]) -> None:
        """These entries are in the log now."""
        self._log += [(e.seq, e.at, len(e.body), e.kind in CHECKPOINT_KINDS) for e in entries]

    def floor(self, seq: int | None, now: float) -> int | None:
        """The oldest seq to keep: of the checkpoints that there are, and of `seq` when that becomes one now."""
        checkpoints = [(s, at) for s, at, _, is_checkpoint in self._log if is_checkpoint]
        if seq is not None:
            checkpoints.append((seq, now))
        policy = self._policy
        return oldest_kept(checkpoints, keep_latest=policy.keep_latest, ttl=seconds(policy.ttl), now=now)

    async def compacted(self, store: Store, run: str, floor: int) -> Entry | None:
        """The checkpoint at `floor` as a full snapshot when dropping what lies before it frees half; else None."""
        droppable = sum(size for seq, _, size, _ in self._log if seq < floor)
        if droppable < self._again_at:
            return None
        entry = await snapshot_at(store, run, self._log[0][0], floor)
        kept = sum(size for seq, _, size, _ in self._log if seq > floor) + len(entry.body)
        if droppable < kept:
            self._again_at = 2 * droppable  # not worth it yet, and not soon
            return None
        self._log = [item for item in self._log if item[0] >= floor]
        self._again_at = _WORTH_BYTES
        return entry


async def snapshot_at(store: Store, run: str, first: int, seq: int) -> Entry:
    """The checkpoint `seq` written as a whole; `first` is the oldest entry in the log."""
    entries = await store.read_entries(run, after=seq - 1, upto=seq)
    if entries:
        base = read_body(run, entries[0]).get("base", seq)
        if base != seq:
            entries = await store.read_entries(run, after=max(first, base) - 1, upto=seq)
    return rebased(run, last_point(run, entries))
