"""How a run leaves this process: each way out is one commit, and an outcome that says what became of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from holdfast.core.codec import dumps
from holdfast.engine.progress import Mark
from holdfast.engine.writer import UnheardError
from holdfast.errors import (
    HoldfastError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunPausedError,
    RunWaitingError,
)
from holdfast.model import Kind, RunStatus

if TYPE_CHECKING:
    from holdfast.engine.runner import Runner
    from holdfast.engine.waits import Waits

_COMPLETED, _COMPLETED_MARK = RunStatus.COMPLETED, Kind.COMPLETED  # slow to find in their enums
_LEFT_OFTEN = 3  # times that a run was let go without having come to a question that was answered


class Outcome:
    """How a run left this process: with a result, or with the error that says what became of it."""

    __slots__ = ("due", "error", "result")

    def __init__(self, result: Any = None, error: HoldfastError | None = None, due: float | None = None) -> None:
        self.result, self.error = result, error
        self.due = due
        """When a run that waits is due."""


async def completed(runner: Runner) -> Outcome:
    """With its result, which is in the log from now on."""
    if not await _has_ended(runner, _COMPLETED, [(_COMPLETED_MARK, runner.came_to)]):
        return await cancelled(runner)
    return Outcome(runner.result())


async def failed(runner: Runner, marks: list[Mark], step: str, error: str, trace: str | None = None) -> Outcome:
    """For good, until somebody resumes or rewinds it. The marks come before its end in the log."""
    body = {"step": step, "error": error, **({"trace": trace} if trace else {})}
    shown = dumps({"step": step, "error": error})
    if not await _has_ended(runner, RunStatus.FAILED, [*marks, (Kind.FAILED, body)], error=shown):
        return await cancelled(runner)
    return Outcome(error=RunFailedError(runner.writer.run, step, error))


async def _has_ended(runner: Runner, status: RunStatus, marks: list[Mark], **fields: Any) -> bool:
    """False when the run is to be cancelled instead, as was wanted of it before its end was written.

    The store refuses an end as long as it has mail that was not heard of here: whoever was told that a run
    is to be cancelled was told the truth.
    """
    while True:
        try:
            await runner.saving.leave(status, marks, heard=runner.control.heard, **fields)
        except UnheardError:
            runner.control.hear(await runner.writer.look())
            if runner.control.cancel is not None:
                return False
        else:
            return True


async def stopped(runner: Runner) -> Outcome:
    """As is wanted of it: cancelled or paused; else handed back with all that it has done so far.

    Crashes since it last went on stay counted.
    """
    if runner.control.cancel is not None:
        return await cancelled(runner)
    if runner.control.pause is not None:
        await runner.saving.leave(RunStatus.PAUSED, [(Kind.PAUSED, {})], attempt=0)
        return Outcome(error=RunPausedError(runner.writer.run))
    await runner.saving.leave(RunStatus.INTERRUPTED, [(Kind.INTERRUPTED, {})], attempt=runner.crashes)
    return Outcome(error=RunInterruptedError(runner.writer.run))


async def cancelled(runner: Runner) -> Outcome:
    """For ever. What is finished is saved with it: a fork does not do it again.

    Its children first: if this process dies in between, the cancel is still in the inbox and is done again.
    """
    reason = runner.control.reason
    await runner.around.children.cancel(runner.writer.run, reason)
    error = None if reason is None else dumps({"step": None, "error": reason})
    mark = (Kind.CANCELLED, {"reason": reason, **runner.came_to})
    await runner.saving.leave(RunStatus.CANCELLED, [mark], error=error)
    return Outcome(error=RunCancelledError(runner.writer.run, reason))


async def let_go(runner: Runner, waits: Waits) -> Outcome:
    """With its waits in its log: whoever is alive when it is due goes on with it."""
    await runner.host.settle()
    if waits.left_with is None or runner.control.cancel is not None or runner.control.pause is not None:
        return await stopped(runner)
    what, due, asks, unasked = waits.left_with
    if waits.has_come:
        due = runner.around.clock.now()
    unread, still_open = runner.host.inbox.unread(asks), waits.open_asks
    kept = _kept(runner, unread, still_open)
    put_away = tuple(mail for mail in unread if mail not in kept)
    marks = [waits.ended_by_mail(unread[mail]) for mail in put_away if unread[mail] in still_open]
    left = {"unasked": unasked, "unread": list(kept.items())}
    marks.append((Kind.WAITING, {"for": what, "until": due, **{name: some for name, some in left.items() if some}}))
    await runner.saving.leave(RunStatus.WAITING, marks, take=put_away, attempt=0, wake_at=due, waiting_for=what)
    return Outcome(error=RunWaitingError(runner.writer.run, what), due=due)


def _kept(runner: Runner, unread: dict[int, str], still_open: Collection[str]) -> dict[int, int]:
    """Those of these answers that stay in the inbox, and how often in a row each was left there.

    The others leave it, where they would wake the run for ever: all whose questions are not asked any more, and those
    that were left often. These move into the log, where the code finds them if it comes to their questions. Once is
    not enough: it may only have been too slow to do so.
    """
    before = dict(runner.host.journal.let_go_with.get("unread", ()))
    left = {mail: before.get(mail, 0) + 1 for mail, ask in unread.items() if ask in still_open}
    return {mail: times for mail, times in left.items() if times < _LEFT_OFTEN}
