"""The heads of several runs, one of which may be damaged: that is told of it alone."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import StoreDamagedError
from holdfast.model import Head
from holdfast.store.base import Store

Found = Head | StoreDamagedError | None


async def read_apart(store: Store, runs: Sequence[str]) -> list[Found]:
    """For each run its head, None when there is no such run, or how it is damaged.

    They are read together. A store that refuses all for one is asked for each.
    """
    try:
        return list(await store.read_heads(runs)) if runs else []
    except StoreDamagedError as error:
        if error.run_id is None:
            raise
        if len(runs) == 1:
            return [error]
    return [found for run in runs for found in await read_apart(store, (run,))]
