"""A run as this process knows it while it drives it, and what a head says of it without its program."""

from __future__ import annotations

import asyncio
from hashlib import blake2b

import msgspec

from holdfast.core.codec import Tree, canonical
from holdfast.engine.runner import Outcome, Runner
from holdfast.engine.shared import Shared


class Info(msgspec.Struct, omit_defaults=True):
    """What a head says of a run so that it can be shown without its program."""

    digest: str = ""
    nonce: str = ""
    total: int | None = None
    steps: tuple[str, ...] = ()


class LiveRun:
    """A run that this process owns and drives."""

    __slots__ = ("done", "id", "parent", "runner", "task")

    def __init__(self, run: str, runner: Runner, parent: str | None = None) -> None:
        self.id, self.runner, self.parent = run, runner, parent
        self.done: Shared[Outcome] = Shared(asyncio.get_running_loop())
        self.task: asyncio.Task[None] | None = None


def digest_of(tree: Tree) -> str:
    """What tells two inputs apart."""
    return blake2b(canonical(tree), digest_size=16).hexdigest()
