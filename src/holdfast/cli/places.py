"""The places that a run can go on from, as a person names them."""

from __future__ import annotations

from holdfast.core.ids import parse_ref
from holdfast.errors import NotACheckpointError
from holdfast.model import Checkpoint
from holdfast.runtime import Runtime


async def place(runtime: Runtime, ref: str) -> Checkpoint | None:
    """The checkpoint of RUN@SEQ or RUN; of a call inside a flow function, the one that its step began with.

    None when it is not there. Raises NotACheckpointError for an entry that nothing can go on from.
    """
    try:
        return await runtime.load(ref, raw=True)
    except NotACheckpointError as error:
        if error.nearest != error.seq:
            raise
    run, seq = parse_ref(ref)
    before = None
    async for point in runtime.checkpoints(run, raw=True):
        if seq is not None and point.seq > seq:
            break
        before = point
    return before
