"""The places in the log of a run, as a person names them."""

from __future__ import annotations

from holdfast.core.ids import parse_ref
from holdfast.errors import NotACheckpointError
from holdfast.model import RESULT_KINDS, Checkpoint
from holdfast.runtime import Runtime


async def place(runtime: Runtime, ref: str) -> Checkpoint | None:
    """The checkpoint of RUN@SEQ or RUN; of a call, the one that its step began with.

    None when it is not there. Raises NotACheckpointError for any other entry. Whether a run can go on from a call is
    for the runtime to say.
    """
    try:
        return await runtime.load(ref, raw=True)
    except NotACheckpointError as error:
        if not await _is_call(runtime, error.run_id, error.seq):
            raise
    run, seq = parse_ref(ref)
    before = None
    async for point in runtime.checkpoints(run, raw=True):
        if seq is not None and point.seq > seq:
            break
        before = point
    return before


async def _is_call(runtime: Runtime, run: str, seq: int) -> bool:
    event = await anext(runtime.events(run, after=seq - 1), None)
    return event is not None and event.seq == seq and event.type in RESULT_KINDS
