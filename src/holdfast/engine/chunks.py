"""Chunks: what the code of a step emits, on its way into the stream of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.codec import Tree
from holdfast.engine.surroundings import Host
from holdfast.errors import HoldfastError
from holdfast.model import Kind

if TYPE_CHECKING:
    from holdfast.engine.scope import StepScope

_TEXT = 100
"""Characters of what a step says of itself that are shown with the run: each entry repeats them."""


def add_chunk(scope: StepScope, path: str, name: str, tree: Tree, size: int) -> None:
    """Show a chunk at once and write it soon, unless the attempt before emitted the same there."""
    if scope.closed:
        return
    host = scope.host
    if name == "progress":
        _say(host, scope.number, tree)
    chunk, superseded = host.journal.emits(path, name, tree)
    if superseded:
        supersede(host, superseded)
    if chunk is None:
        return

    def written(seq: int | HoldfastError) -> None:
        if isinstance(seq, int):
            chunk.seq = seq

    body = {"name": name, "data": tree, "path": path}
    host.notes.put(Kind.EMITTED, body, written=written, soon=False, size=size)
    host.show("emitted", data={"name": name, "data": tree})


def supersede(host: Host, chunks: list[int]) -> None:
    """Mark chunks of an earlier attempt, by their seqs, that this one does not emit."""
    host.notes.put(Kind.SUPERSEDED, {"seqs": chunks}, soon=False)
    host.show("superseded", data={"seqs": chunks})


def _say(host: Host, number: int, tree: Tree) -> None:
    """Show how far the step is with whatever is written from now on, until the step is saved."""
    match tree:
        case {"fraction": int() | float() as fraction, "text": str() | None as text} if 0 <= fraction <= 1:
            said: dict[str, Any] = {"fraction": fraction}
            if text is not None:
                said["text"] = text[:_TEXT]
            # Steps that are finished but not saved yet: the cursor that is shown is that of the checkpoint.
            if ahead := number - host.writer.cursor["step"]:
                said["ahead"] = ahead
            host.writer.said = said
