"""When a checkpoint is saved and which ones are kept; how many runs go at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import msgspec

from holdfast.core.durations import is_duration, seconds
from holdfast.errors import UsageError


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to save and what to keep. Durations are seconds or timedelta.

    Triggers are OR-ed; with none given every step is saved: `every_n_steps`; `interval`, at the first
    step boundary after it has elapsed; `on_complete`, after the steps, nodes or members named. A
    `throttle` leaves out saves that follow the last one too soon. Start, pause, wait, interrupt, fail and
    finish are always saved.

    `keep_latest` checkpoints stay loadable, and none older than `ttl` (but always the last one of an
    unfinished run). `on_finish`: keep | delete | delete_on_success; deleting drops the history and keeps
    the result. `on_save_error`: "raise" stops the run at its last good step, "warn" goes on without.
    """

    every_n_steps: int | None = None
    interval: float | timedelta | None = None
    on_complete: Sequence[str] | None = None
    throttle: float | timedelta | None = None
    keep_latest: int | None = None
    ttl: float | timedelta | None = None
    on_finish: Literal["keep", "delete", "delete_on_success"] = "keep"
    on_save_error: Literal["raise", "warn"] = "raise"

    def __post_init__(self) -> None:
        for name in ("every_n_steps", "keep_latest"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"CheckpointPolicy({name}={value!r}): it must be a whole number of at least 1")
        for name in ("interval", "throttle", "ttl"):
            value = getattr(self, name)
            if value is not None and not is_duration(seconds(value)):
                raise UsageError(f"CheckpointPolicy({name}={value!r}): seconds or a timedelta, of 0 to 3,000 years")
        if self.on_complete is not None and not _are_names(self.on_complete):
            raise UsageError(f"CheckpointPolicy(on_complete={self.on_complete!r}): give a list of names")
        if self.on_finish not in ("keep", "delete", "delete_on_success"):
            raise UsageError(f"CheckpointPolicy(on_finish={self.on_finish!r}): keep, delete or delete_on_success")
        if self.on_save_error not in ("raise", "warn"):
            raise UsageError(f"CheckpointPolicy(on_save_error={self.on_save_error!r}): raise or warn")

    def saves(self, *, steps: int, elapsed: float, step: str) -> bool:
        """Whether to save now: `steps` finished and `elapsed` seconds gone since the last save, `step` the latest."""
        if self.throttle is not None and elapsed < (seconds(self.throttle) or 0.0):
            return False
        if self.every_n_steps is None and self.interval is None and self.on_complete is None:
            return True
        interval = seconds(self.interval)
        return (
            (self.every_n_steps is not None and steps >= self.every_n_steps)
            or (interval is not None and elapsed >= interval)
            or (self.on_complete is not None and step in self.on_complete)
        )

    @property
    def skips(self) -> bool:
        """Whether a step may be finished and not saved."""
        by_other = self.interval is not None or self.on_complete is not None or self.throttle is not None
        return by_other or (self.every_n_steps or 1) > 1

    @property
    def retains(self) -> bool:
        """Whether some checkpoints are to be dropped while a run goes on."""
        return self.keep_latest is not None or self.ttl is not None

    def deletes_history(self, *, success: bool) -> bool:
        """Whether a run that ends keeps only its last checkpoint."""
        return self.on_finish == "delete" or (self.on_finish == "delete_on_success" and success)


def _are_names(given: object) -> bool:
    """Whether these are names, and can be gone through again: a generator cannot, and a text is none of several."""
    return isinstance(given, (list, tuple, set, frozenset)) and all(type(name) is str for name in given)


def check_policy(policy: object) -> CheckpointPolicy | None:
    """The policy itself, or None. Raises UsageError for anything else."""
    if policy is not None and not isinstance(policy, CheckpointPolicy):
        raise UsageError(f"policy={policy!r} must be a CheckpointPolicy, e.g. CheckpointPolicy(every_n_steps=3)")
    return policy


class RunLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs of a flow workers have under way at once, over the whole fleet; None is any number.

    `total` counts all of its runs, `per_key` those that were started with the same `key=`.
    """

    total: int | None = None
    per_key: int | None = None

    def __post_init__(self) -> None:
        for name in ("total", "per_key"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"RunLimit({name}={value!r}): it must be a whole number of at least 1")


def check_limit(limit: object) -> RunLimit | None:
    """The limit that is meant; a number is that of all runs. Raises UsageError for anything else."""
    if limit is None or isinstance(limit, RunLimit):
        return limit
    if type(limit) is not int or limit < 1:
        raise UsageError(f"limit={limit!r} must be a whole number of at least 1, or RunLimit(total=10, per_key=1)")
    return RunLimit(total=limit)


def oldest_kept(
    checkpoints: Sequence[tuple[int, float]], *, keep_latest: int | None, ttl: float | None, now: float
) -> int | None:
    """The seq of the oldest checkpoint to keep, of (seq, time) pairs in order; None when there is none.

    The last one is always kept: whether a finished run may lose it is for the caller to say.
    """
    if not checkpoints:
        return None
    kept = list(checkpoints)
    if keep_latest is not None:
        kept = kept[-keep_latest:]
    if ttl is not None:
        kept = [pair for pair in kept if pair[1] > now - ttl] or kept[-1:]
    return kept[0][0]
