"""The verbs of the runtime: start, resume, rewind, fork, checkpoint, delete, and with `stopping` pause and cancel.

What a verb does in which situation stands in `core.transitions`; here it is done. A decision is
made on a head that was just read and made again on the head that the claim returns: nobody else can
change the run from then on.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.codec import Tree, dumps, loads
from holdfast.core.history import Point, Signal, position_of
from holdfast.core.ids import check_id, new_id, parse_ref
from holdfast.core.journal import Journal
from holdfast.core.transitions import ENDED, HINTS, Act, Situation, act, situation
from holdfast.engine.engine import Engine, MakingRun
from holdfast.engine.info import Info, digest_of
from holdfast.engine.leaving import Outcome
from holdfast.engine.listing import encode_metadata
from holdfast.engine.live import LiveRun
from holdfast.engine.observers import show_last
from holdfast.engine.queueing import HERE, Placing
from holdfast.engine.reader import Reader
from holdfast.engine.refusals import ended_error, refused
from holdfast.engine.stopping import Stopping
from holdfast.engine.writer import RunWriter
from holdfast.errors import (
    HoldfastError,
    NotLoadableError,
    RunNotFoundError,
    RunOwnedError,
    StepMissingError,
    UsageError,
    VerbRefusedError,
)
from holdfast.flows.base import Flow
from holdfast.flows.input import check_fields
from holdfast.model import Claim, Head, Kind, Mail, RunStatus

MISSING: Any = object()
_LOOK_AGAIN = 1.0


class Verbs:
    """What users do with runs."""

    def __init__(self, engine: Engine, reader: Reader) -> None:
        self._engine, self._reader = engine, reader
        self.stop = Stopping(engine, self.head).stop

    # New runs

    def start(
        self,
        flow: Flow[Any],
        input: Any,
        run: str | None,
        metadata: dict[str, Any] | None,
        parent: str | None,
        place: Placing = HERE,
    ) -> Awaitable[LiveRun]:
        """A new run, live here."""
        self._engine.registry.add(flow)
        return self._engine.bring_in(partial(self._create, flow, input, run, metadata, parent, place))

    def carry_out(
        self, flow: Flow[Any], input: Any, run: str | None, metadata: dict[str, Any] | None, parent: str | None
    ) -> Awaitable[Outcome]:
        """What a new run of a flow that is known comes to here."""
        return self._engine.carry_out(partial(self._create, flow, input, run, metadata, parent, HERE))

    async def enqueue(
        self,
        flow: Flow[Any],
        input: Any,
        run: str | None,
        metadata: dict[str, Any] | None,
        parent: str | None,
        place: Placing,
    ) -> str:
        """A new run in a queue; its id."""
        self._engine.registry.add(flow)
        head, _ = await self._engine.to_its_end(self._create(flow, input, run, metadata, parent, place))
        return head.id

    def _create(
        self,
        flow: Flow[Any],
        input: Any,
        run: str | None,
        metadata: dict[str, Any] | None,
        parent: str | None,
        place: Placing,
    ) -> MakingRun:
        """What makes the new run when it is awaited; what cannot be made is refused before that."""
        engine = self._engine
        if parent is not None:
            check_id(parent)
        codec = engine.registry.codec(flow.name)
        given = None if input is MISSING else input
        position = flow.start(given)
        taken = position.state if _takes_state(flow) else given
        encoded = codec.encode(taken, path="input")
        return engine.creating.create(
            new_id(flow.name) if run is None else check_id(run),
            flow.name,
            encoded if position.state is taken else codec.encode(position.state),
            position.cursor,
            digest=digest_of(encoded),
            metadata=encode_metadata(metadata),
            parent=parent,
            shape=(flow.total_steps, flow.step_names),
            place=place,
        )

    def digest(self, flow: Flow[Any], input: Any) -> str:
        """What tells this input of the flow from others."""
        taken = input
        if _takes_state(flow):
            with suppress(UsageError):  # what no run could begin with is another input than that of any
                taken = flow.start(input).state
        return digest_of(self._engine.registry.codec(flow.name).encode(taken, path="input"))

    async def fork(
        self, ref: str, run: str | None, state: Any, metadata: dict[str, Any] | None, *, raw: bool = False
    ) -> tuple[Head, LiveRun | None]:
        """A new run from a checkpoint; the source is only read. Live here if the program has the flow."""
        return await self._engine.to_its_end(self._fork(ref, run, state, metadata, raw=raw))

    async def _fork(
        self, ref: str, run: str | None, state: Any, metadata: dict[str, Any] | None, *, raw: bool
    ) -> tuple[Head, LiveRun | None]:
        engine = self._engine
        source, seq = parse_ref(ref)
        head = await self.head(source)
        point, at = await self._reader.place(head, seq)
        if engine.registry.has(head.flow):
            self._check_step(source, engine.registry.flow(source, head.flow)[0], point.cursor)
            if state is MISSING:
                engine.taking.check_fits(head, point)
        info = msgspec.json.decode(head.info, type=Info)
        tree, digest, carried = point.tree, info.digest, point.carried
        if state is not MISSING:
            tree = self._tree_of(head.flow, state, tree, raw=raw)
            digest = digest_of(tree)
            carried.pop("result", None)  # which another state came to
        new_head, writer = await engine.creating.create(
            new_id(head.flow) if run is None else check_id(run),
            head.flow,
            tree,
            point.cursor,
            digest=digest,
            metadata=head.metadata if metadata is None else encode_metadata(metadata),
            parent=head.parent,
            origin=f"{source}@{at}",
            carried=carried,
            shape=(info.total, info.steps),
        )
        if engine.registry.has(head.flow):
            journal = Journal.of(new_head.id, writer.written)
            return new_head, engine.drive(engine.admit(new_head, writer, entries=writer.written, journal=journal))
        with engine.custody.giving_up(writer):
            await writer.release()
        return new_head, None

    def _tree_of(self, flow: str, state: Any, before: Tree, *, raw: bool) -> Tree:
        """What is stored of a state that a user gives in the place of the one before; a `raw` one is a tree itself."""
        if raw and not self._engine.registry.has(flow):
            return loads(dumps(state))  # a copy: it remains the caller's
        codec = self._engine.registry.codec(flow)
        if raw:
            check_fields(state := codec.decode(state, typed=True))
        return codec.encode(self._fitted(flow, state, before))

    def _fitted(self, name: str, state: Any, tree: Tree) -> Any:
        """A state that a user gives, as the flow takes it in the place of the one before."""
        if not self._engine.registry.has(name):
            return state
        flow, codec = self._engine.registry.flow("", name)
        fit = getattr(flow, "fit_state", None)
        if fit is None:
            return state
        try:
            before = codec.decode(tree)
        except NotLoadableError:  # which may be why another state is given
            if getattr(flow, "raw_state", False):
                raise  # it keeps what is not given of the one before
            before = None
        return fit(state, before)

    # Going on

    async def resume(self, ref: str) -> LiveRun:
        """Go on from the latest checkpoint."""
        run, seq = parse_ref(ref)
        if seq is not None:
            raise UsageError(f"resume goes on from the latest checkpoint; rt.rewind({ref!r}) goes back to that one")
        return await self._engine.to_its_end(self._resume(run))

    async def _resume(self, run: str) -> LiveRun:
        claim = await self._claim("resume", run)
        overruled = _overruled(claim)
        writer = await self._writer(claim, overruled)
        if overruled or claim.head.status in (RunStatus.PAUSED, RunStatus.FAILED):
            # The caller is told that it goes on: that must outlive this process.
            with self._engine.custody.giving_up(writer):
                await self._reopen(writer, overruled)
        return await self._engine.taking.take(_without(claim, overruled), writer)

    async def take(self, run: str) -> LiveRun:
        """Go on with a run that nobody drives, and with what was asked of it before."""
        return await self._engine.to_its_end(self._take(run))

    async def _take(self, run: str) -> LiveRun:
        claim = await self._claim("run", run)
        return await self._engine.taking.take(claim, await self._writer(claim))

    async def _reopen(self, writer: RunWriter, overruled: tuple[int, ...]) -> None:
        mark = (Kind.RESUMED, {"from": writer.checkpoint_seq})
        cleared: dict[str, Any] = {"error": None, "ended_at": None, "expires_at": None}
        await writer.write([mark], status=RunStatus.RUNNING, attempt=1, take=overruled, **cleared)

    async def rewind(self, ref: str) -> LiveRun:
        """Go on from an older checkpoint, in place; nothing is deleted."""
        return await self._engine.to_its_end(self._rewind(ref))

    async def _rewind(self, ref: str) -> LiveRun:
        run, seq = parse_ref(ref)
        head = await self.head(run)
        point, to = await self._reader.place(head, seq)
        claim = await self._claim("rewind", run, to=point)
        # Where it stands now is no matter, and may be what is damaged.
        head = replace(claim.head, cursor=b"null")
        writer = RunWriter(self._engine.committer, self._engine.clock, head, None)
        overruled = _overruled(claim)
        with self._engine.custody.giving_up(writer):
            # Messages that came in since are not lost: what the new branch receives are the same ones.
            pending = _unreceived(point, await self._reader.signals(run, point.seq))
            _forget_open_waits(point)
            await writer.rewind(point, to=to, pending=pending, take=overruled)
        show_last(self._engine, writer)
        # Attempts that failed on the branch before do not count on this one.
        claim = replace(_without(claim, overruled), entries=tuple(writer.written))
        return await self._engine.taking.take(claim, writer)

    # Saving and removing

    async def checkpoint(self, run: str) -> str:
        """A checkpoint at the next safe point; its id."""
        head = await self.head(run)
        if situation(head) is Situation.LIVE:
            key = f"checkpoint-{secrets.token_hex(8)}"
            await self._engine.store.post_mail(run, Mail("checkpoint", key=key))
            await self._engine.postman.fetch(run)
            async for event in self._after(run, head.seq):
                if event.type == "checkpointed" and key in event.data.get("asked", ()):
                    return f"{run}@{event.seq}"
            head = await self.head(run)
        point = await self._reader.point(head, None)
        assert point is not None
        return f"{run}@{point.seq}"

    async def _after(self, run: str, seq: int) -> Any:
        """The events of a run from there on for as long as somebody drives it."""
        token, after = 0, seq
        while True:
            token = await self._engine.wait_change(run, token, _LOOK_AGAIN)
            head = await self.head(run)
            async for event in self._reader.events(run, after, False):
                after = max(after, event.seq or 0)
                yield event
            if situation(head) is not Situation.LIVE:
                return

    async def delete(self, run: str) -> None:
        """Remove a run with all its history. Nothing happens when there is none."""
        check_id(run)
        head = await self._reader.head(run)
        if head is None:
            return
        live = act("delete", situation(head)) is Act.REFUSE
        if live or not (await self._engine.store.delete_run(run) or await self._reader.head(run) is None):
            raise VerbRefusedError(run, "delete", Situation.LIVE, HINTS["delete", Situation.LIVE])
        if head.parent is not None:
            await self._engine.children.ended(run, head.parent)  # which may be waiting for it

    # Claiming

    async def head(self, run: str) -> Head:
        """The head of a run, given up first if it was only held here. Raises RunNotFoundError."""
        await self._engine.custody.release(check_id(run))
        head = await self._reader.head(run)
        if head is None:
            raise RunNotFoundError(run)
        return head

    async def _claim(self, verb: str, run: str, to: Point | None = None) -> Claim:
        """Claim a run in order to drive it, after everything that could forbid it has been looked at."""
        head = await self.head(run)
        self._permit(verb, head)
        flow, _ = self._engine.registry.flow(run, head.flow)
        self._check_step(run, flow, position_of(head) if to is None else to.cursor)
        if to is not None:
            self._engine.taking.check_fits(head, to)
        live = self._engine.live.get(run)
        if live is not None and not live.runner.writer.given_up:
            raise RunOwnedError(run, head.owner)  # the store would let this process have it twice if its lease ran out
        claim = await self._engine.custody.claim_one(run)
        if claim is None:
            raise RunOwnedError(run, head.owner)
        try:
            self._permit(verb, replace(claim.head, owned=False))
        except HoldfastError:
            await self._engine.custody.give_back(claim)
            raise
        return claim

    def _check_step(self, run: str, flow: Flow[Any], cursor: dict[str, Any]) -> None:
        if cursor["next"] is not None and flow.next_step(cursor) is None:
            raise StepMissingError(run, flow.name, cursor["next"], flow.step_names)

    async def _writer(self, claim: Claim, overruled: tuple[int, ...] = ()) -> RunWriter:
        try:
            return self._engine.taking.writer(claim, overruled)
        except HoldfastError:
            await self._engine.custody.give_back(claim)
            raise

    def _permit(self, verb: str, head: Head) -> None:
        match act(verb, situation(head)):
            case Act.REFUSE:
                raise refused(verb, head)
            case Act.RAISE:
                raise ended_error(head)
            case Act.JOIN | Act.RESULT:  # it is not to be claimed: whoever asked looks again
                raise RunOwnedError(head.id, head.owner)


def _takes_state(flow: Flow[Any]) -> bool:
    """Whether the input of the flow is its first state, so that what is the same state is the same input."""
    return getattr(flow, "takes_state", False)


def _unreceived(point: Point, since: list[Signal]) -> tuple[Signal, ...]:
    """The messages that a branch which goes on from there has not received yet."""
    kept = point.extra.get("journal", ())
    received = {body["signal"] for kind, _, body in kept if kind == Kind.RECEIVED}
    return tuple(signal for signal in (*point.pending, *since) if signal.seq not in received)


def _forget_open_waits(point: Point) -> None:
    """A question that was open there may have been answered since: the new branch asks it anew."""
    if "journal" in point.extra:
        point.extra["journal"] = [one for one in point.extra["journal"] if one[0] != Kind.WAIT]


def _overruled(claim: Claim) -> tuple[int, ...]:
    """The mail that going on explicitly overrules: every pause, and a cancel that came after the run had ended."""
    kinds = ("pause", "cancel") if claim.head.status in ENDED else ("pause",)
    return tuple(mail.id for mail in claim.mail if mail.kind in kinds)


def _without(claim: Claim, taken: tuple[int, ...]) -> Claim:
    return replace(claim, mail=tuple(mail for mail in claim.mail if mail.id not in taken))
