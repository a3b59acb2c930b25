"""How a claimed run goes on here: from its last checkpoint, unless it was taken up too often for nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.history import Point, failures_since, newest
from holdfast.core.journal import Journal
from holdfast.engine import leaving
from holdfast.engine.inbox import check_mail
from holdfast.engine.info import Info
from holdfast.engine.live import LiveRun
from holdfast.engine.writer import RunWriter
from holdfast.errors import NotLoadableError, StoreDamagedError
from holdfast.model import Claim, Entry, Head, Kind, RunStatus

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


_STOPS = ("cancel", "pause")


class Taking:
    """Belongs to one engine."""

    def __init__(self, engine: Engine, crash_limit: int) -> None:
        self._engine, self._crash_limit = engine, crash_limit

    def writer(self, claim: Claim, overruled: Collection[int] = ()) -> RunWriter:
        """What writes to a claimed run; mail that is `overruled` wants nothing of it.

        Raises StoreDamagedError, ResultExpiredError or NotLoadableError when it cannot be gone on with.
        """
        _check_readable(claim)
        point, fold = newest(claim.head, claim.entries)
        if not any(mail.kind in _STOPS and mail.id not in overruled for mail in claim.mail):  # those need no state
            self.check_fits(claim.head, point)
        writer = RunWriter(self._engine.committer, self._engine.clock, claim.head, point)
        writer.beside, writer.pending = fold.beside, fold.pending
        return writer

    def check_fits(self, head: Head, point: Point) -> None:
        """Raise NotLoadableError when the types of the program do not fit the state that the next step is to get.

        Found out here, before anything is written, it is no failure of that step, which never began: a program that
        fits, as the one before it did, goes on with the run.
        """
        flow, codec = self._engine.registry.flow(head.id, head.flow)
        if point.plain or point.cursor["next"] is None or getattr(flow, "raw_state", False):
            return
        try:
            codec.decode(point.tree)
        except NotLoadableError as error:
            raise NotLoadableError(error.path, f"{error.problem}. Run {head.id} is unchanged") from error.__cause__

    async def take(self, claim: Claim, writer: RunWriter) -> LiveRun:
        """Drive a claimed run from its last checkpoint.

        Taking a run up costs no commit: that it was resumed travels with the first one. A run that was
        taken up too often without any progress is ended as failed instead.
        """
        with self._engine.custody.giving_up(writer):
            return await self._take(claim, writer)

    async def _take(self, claim: Claim, writer: RunWriter) -> LiveRun:
        engine, head, name = self._engine, claim.head, writer.cursor["next"]
        failures, retry_at = failures_since(head.id, claim.entries)
        begun = head.status != RunStatus.PENDING or head.started_at is not None
        wanted = any(mail.kind in _STOPS for mail in claim.mail)
        # Who waits for the next attempt kills nobody.
        to_blame = begun and not wanted and retry_at <= engine.clock.now()
        if to_blame and writer.attempt > self._crash_limit:
            error = f"given up after {writer.attempt - 1} crashes or failed saves in step {name!r} without progress"
            return await self._give_up(head, writer, name, error)
        entries = await self._for_retention(head)
        if not writer.written and begun:
            writer.marks_due += ((Kind.RESUMED, {"from": writer.checkpoint_seq}),)
        self._note_shape(head, writer)
        if begun:
            engine.show("resumed", head.id, step=name, data={"from": writer.checkpoint_seq})
        journal = Journal.of(head.id, claim.entries)
        live = engine.admit(head, writer, entries=entries, failures=failures, retry_at=retry_at, journal=journal)
        engine.drive(live)
        live.runner.control.deliver(claim.mail)
        return live

    def _note_shape(self, head: Head, writer: RunWriter) -> None:
        """A program that has changed since may have other steps: what lists show of the run follows it."""
        flow, _ = self._engine.registry.flow(head.id, head.flow)
        info = msgspec.json.decode(head.info, type=Info)
        if (info.total, info.steps) != (flow.total_steps, flow.step_names):
            info.total, info.steps = flow.total_steps, flow.step_names
            writer.fields_due = {"info": msgspec.json.encode(info)}

    async def _give_up(self, head: Head, writer: RunWriter, step: str, error: str) -> LiveRun:
        live = self._engine.live_run(head, writer)
        live.done.set(await leaving.failed(live.runner, [], step, error))
        self._engine.tell_parent(live)
        return live

    async def _for_retention(self, head: Head) -> list[Entry]:
        """The whole log where the policy drops some of it: what is kept begins before the newest segment."""
        flow, _ = self._engine.registry.flow(head.id, head.flow)
        return await self._engine.store.read_entries(head.id) if (flow.policy or self._engine.policy).retains else []


def _check_readable(claim: Claim) -> None:
    """What of a claimed run cannot be read is found before anything runs, not by the code inside."""
    try:
        msgspec.json.decode(claim.head.metadata)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamagedError(claim.head.id, None, f"its metadata cannot be read: {error}") from error
    check_mail(claim.head.id, claim.mail)
