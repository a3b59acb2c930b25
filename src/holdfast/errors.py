"""Everything Holdfast raises on purpose.

    HoldfastError
    ├── UsageError                  the program asked for something that cannot be
    │   ├── InvalidIdError          a run id or reference outside the allowed form
    │   ├── InvalidFilterError      an unknown filter, a bad limit, a forged page cursor
    │   ├── FlowNotRegisteredError  the program does not have the flow of a stored run
    │   ├── StepMissingError        the flow does not have the step a stored run is at
    │   ├── WrongFlowError          the same id was run again with another flow
    │   ├── InputChangedError       the same id was run again with another input
    │   ├── RunExistsError          `start` or `fork` with an id that is taken
    │   ├── NotACheckpointError     RUN@SEQ names no checkpoint
    │   ├── KeyReusedError          two calls of one scope asked for the same key
    │   ├── IdenticalBranchError    two tasks begin with the same call, so nothing tells them apart
    │   ├── WrongKindError          an async verb in a def body, or the other way round
    │   ├── UnknownTargetError      a step named a node, member or label that does not exist
    │   ├── NoQuestionError         an answer to a run that has not asked
    │   ├── AnswerError             an answer that does not fit its question
    │   └── AnsweredError           another answer was first
    ├── StateError                  a value cannot be stored, or stored data cannot be built again
    │   ├── NotStorableError
    │   └── NotLoadableError
    ├── RunError                    what a run has come to, or what its status forbids
    │   ├── RunNotFoundError
    │   ├── RunFailedError
    │   ├── RunCancelledError
    │   ├── RunPausedError
    │   ├── RunWaitingError
    │   ├── RunInterruptedError
    │   ├── RunOwnedError           another live process has it
    │   ├── OwnershipLostError      it is not this process's any more; a late write was refused
    │   ├── ResultExpiredError      finished, but its retention removed the result
    │   └── VerbRefusedError        the run's status does not allow this verb
    ├── StoreError                  the store itself
    │   ├── StoreUnavailableError   disk full, read-only, I/O error, locked
    │   ├── StoreDamagedError       a checksum or a chain is broken; names run and seq
    │   └── StoreVersionError       written by a newer Holdfast; left unchanged
    ├── StepTimeoutError            a step or call took longer than its timeout; a TimeoutError as well
    ├── CallFailedError             how a call failed before, where its own error cannot be built again
    ├── WaitTimeoutError            nobody answered or sent in time; a TimeoutError as well
    ├── TooManyStepsError           a graph, team or agent reached its limit
    ├── ModelAnswerError            a model answered with something that is no message
    ├── CallInDoubtError            a call was cut off, and nobody knows whether it was done
    └── CallAbandonedError          a call that was given up before; a TimeoutError as well

Each message says what to do next. A driver's own error is the `__cause__`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal


class HoldfastError(Exception):
    """The root of every error that Holdfast raises on purpose."""


class UsageError(HoldfastError):
    """The program asked for something that cannot be."""


class InvalidIdError(UsageError):
    """A run id or reference is outside the allowed form; nothing was read or written."""

    def __init__(self, value: object, what: str = "run id") -> None:
        self.value = value
        shown = ascii(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(
            f"{shown} is not a valid {what}. Allowed: 1 to 128 characters of A-Z a-z 0-9 . _ - "
            f"that begin with a letter or digit; a checkpoint is RUN@SEQ, for example report-1@7."
        )


class InvalidFilterError(UsageError):
    """A list was asked for with a filter that does not exist or cannot be."""


class FlowNotRegisteredError(UsageError):
    """The program does not have the flow of a stored run."""

    def __init__(self, run_id: str, flow: str, known: Sequence[str]) -> None:
        self.run_id, self.flow, self.known = run_id, flow, tuple(known)
        have = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"run {run_id} belongs to flow {flow!r}, which this program has not registered (it has: {have}). "
            f"Call rt.register(...) with that flow first; on the command line pass --app FILE."
        )


class StepMissingError(UsageError):
    """The flow no longer has the step that a stored run comes to next."""

    def __init__(self, run_id: str, flow: str, step: str, known: Sequence[str]) -> None:
        self.run_id, self.flow, self.step, self.known = run_id, flow, step, tuple(known)
        super().__init__(
            f"run {run_id} goes on with step {step!r}, which flow {flow!r} does not have (it has: "
            f"{', '.join(known)}). Put the step back under that name (@step(name={step!r})), or fork an "
            f"earlier checkpoint. The run is unchanged."
        )


class WrongFlowError(UsageError):
    """The same id was asked for with another flow than the stored one."""

    def __init__(self, run_id: str, stored: str, given: str) -> None:
        self.run_id, self.stored, self.given = run_id, stored, given
        super().__init__(f"run {run_id} belongs to flow {stored!r}, not to {given!r}. Nothing was run. Use another id.")


class InputChangedError(UsageError):
    """The same id was run again with another input; nothing ran."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id} exists with another input, so nothing was run. Use another id for the new input, or leave "
            f"the input out to go on with the stored one: under this very id, for under one that does not exist that "
            f"begins a new run with the input None (rt.resume never begins one)."
        )


class RunExistsError(UsageError):
    """The id of a new run is taken."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id} exists already. rt.run continues it or gives its result; rt.delete removes it; "
            f"otherwise choose another id."
        )


class NotACheckpointError(UsageError):
    """RUN@SEQ does not name a checkpoint."""

    def __init__(self, run_id: str, seq: int, nearest: int | None) -> None:
        self.run_id, self.seq, self.nearest = run_id, seq, nearest
        hint = "it has none left" if nearest is None else f"the nearest is {run_id}@{nearest}"
        super().__init__(f"{run_id}@{seq} is not a checkpoint; {hint}. `holdfast show {run_id}` lists them all.")


class StateError(HoldfastError):
    """A value cannot go into the store, or cannot be built again from it."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


class NotStorableError(StateError):
    """A value cannot be stored exactly; nothing was written."""


class NotLoadableError(StateError):
    """Stored data does not fit the types that the program declares."""


class RunError(HoldfastError):
    """What a run has come to, or what its status forbids."""

    def __init__(self, run_id: str, message: str) -> None:
        self.run_id = run_id
        super().__init__(message)


class RunNotFoundError(RunError):
    """No run of that id is in the store."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, f"there is no run {run_id} in this store. `holdfast ls` lists the runs.")


class RunFailedError(RunError):
    """The run ended as failed; `rt.resume` tries its failed step again."""

    def __init__(self, run_id: str, step: str | None, error: str) -> None:
        self.step, self.error = step, error
        where = f" in step {step!r}" if step else ""
        super().__init__(
            run_id,
            f"run {run_id} failed{where}: {error.rstrip('.')}. rt.resume({run_id!r}) goes on at the failed step.",
        )


class RunCancelledError(RunError):
    """The run was cancelled, which is final."""

    def __init__(self, run_id: str, reason: str | None) -> None:
        self.reason = reason
        why = f": {reason}" if reason else ""
        super().__init__(run_id, f"run {run_id} was cancelled{why}. That is final; fork a checkpoint to go on.")


class RunPausedError(RunError):
    """The run is paused and stays so until it is resumed."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, f"run {run_id} is paused. rt.resume({run_id!r}) goes on with it.")


class RunWaitingError(RunError):
    """The run waits for something from outside and needs no process meanwhile."""

    def __init__(self, run_id: str, waiting_for: str | None) -> None:
        self.waiting_for = waiting_for
        super().__init__(run_id, f"run {run_id} waits for {waiting_for or 'something from outside'}.")


class RunInterruptedError(RunError):
    """This process handed the run back before it ended; it can be gone on with anywhere."""

    def __init__(self, run_id: str, why: str = "this process shuts down") -> None:
        self.why = why
        super().__init__(run_id, f"run {run_id} was handed back unfinished because {why}. Run it again to go on.")


class RunOwnedError(RunError):
    """A live process has the run."""

    def __init__(self, run_id: str, owner: str | None) -> None:
        self.owner = owner
        super().__init__(
            run_id,
            f"run {run_id} is live in {owner or 'another process'}. rt.run joins it and gives its result; "
            f"rt.cancel or rt.pause reach it from here.",
        )


How = Literal["taken over", "given up", "gone", "unknown"]


class OwnershipLostError(RunError):
    """The run is not this process's any more; what it wrote late was refused. `how` says what became of the run."""

    def __init__(self, run_id: str, fence: int, how: How = "taken over") -> None:
        self.fence, self.how = fence, how
        super().__init__(run_id, _LOST[how].format(run=run_id, fence=fence))


_LOST: dict[How, str] = {
    "taken over": "run {run} was taken over by another process while this one (fence {fence}) did not answer; its late "
    "write was refused and nothing was lost. rt.run({run!r}) joins the new owner.",
    "given up": "run {run} was given up by this process (fence {fence}) before its code came to an end; what that "
    "wrote late was refused. rt.run({run!r}) goes on with the run, or gives its result.",
    "gone": "run {run} is not in the store any more: it was deleted, or the store was removed or another put in its "
    "place. What this process (fence {fence}) wrote late was refused.",
    "unknown": "run {run} is not owned by this process (fence {fence}) any more: its late write was refused, and what "
    "became of the run cannot be read. `holdfast doctor` looks at the store.",
}


class ResultExpiredError(RunError):
    """The run has ended, and its retention has removed the result with the rest of its history."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            run_id, f"run {run_id} has ended and its history expired by policy. rt.delete({run_id!r}) frees the id."
        )


_TOWARDS = {"send": "send to"}


class VerbRefusedError(RunError):
    """The run's status does not allow this verb; nothing changed."""

    def __init__(self, run_id: str, verb: str, status: str, hint: str) -> None:
        self.verb, self.status = verb, status
        super().__init__(run_id, f"cannot {_TOWARDS.get(verb, verb)} run {run_id}: it is {status}. {hint}".rstrip())


class StoreError(HoldfastError):
    """Something about the store itself."""


class StoreUnavailableError(StoreError):
    """The store could not be read or written; nothing that was not acknowledged is counted as done."""


class StoreDamagedError(StoreError):
    """Stored data does not pass its checksum or chain; it is never resumed from."""

    def __init__(self, run_id: str | None, seq: int | None, problem: str) -> None:
        self.run_id, self.seq, self.problem = run_id, seq, problem
        where = "store" if run_id is None else run_id if seq is None else f"{run_id}@{seq}"
        super().__init__(
            f"{where} is damaged: {problem}. `holdfast doctor` lists all damage; other runs are unaffected."
        )


class StoreVersionError(StoreError):
    """The store was written by a newer Holdfast; it was left unchanged."""

    def __init__(self, found: int, supported: int) -> None:
        self.found, self.supported = found, supported
        super().__init__(
            f"this store has version {found}, this Holdfast knows versions up to {supported}. "
            f"Upgrade Holdfast; the store was not changed."
        )


class StepTimeoutError(HoldfastError, TimeoutError):
    """A step took longer than its timeout; it counts as a failed attempt."""

    def __init__(self, step: str, seconds: float) -> None:
        self.step, self.seconds = step, seconds
        super().__init__(f"step {step!r} took longer than its timeout of {seconds:g} s")


class CallFailedError(HoldfastError):
    """A call failed when it was made, and its own error cannot be built again from the log.

    Exceptions of Python, of Holdfast and those given to `rt.register` come back as themselves instead.
    """

    def __init__(self, call: str, error_type: str, error: str) -> None:
        self.call, self.error_type, self.error = call, error_type, error
        super().__init__(f"{f'call {call!r}' if call else 'the call'} failed with {error}")


class KeyReusedError(UsageError):
    """Two calls of one scope asked for the same key."""

    def __init__(self, run_id: str, name: str, key: str) -> None:
        self.run_id, self.name, self.key = run_id, name, key
        super().__init__(
            f"run {run_id} used the key {key!r} twice for {name!r}. Calls are found again by their key: pass "
            f"a distinct one for each, for example {name}.options(key=f'{key}-{{i}}')(...) inside a loop."
        )


def with_key(name: str) -> str:
    """How a call of that name is given a key, for whoever has to."""
    if name in ("ask", "receive", "sleep", "spawn"):
        return f"{name}(..., key=...)"
    return f"{name}.options(key=...)(...) or call.options(key=...)({name}, ...)"


class IdenticalBranchError(UsageError):
    """Two tasks of one scope begin with the same call, so nothing tells them apart after a crash."""

    def __init__(self, run_id: str, name: str) -> None:
        self.run_id, self.name = run_id, name
        super().__init__(
            f"run {run_id}: two tasks begin with the same call of {name!r} with the same arguments, so after a crash "
            f"nothing would tell whose results are whose. Give each a key: {with_key(name)}."
        )


class WrongKindError(UsageError):
    """An async verb or step was used in a `def` body, or a blocking one in an async body."""


class NoQuestionError(UsageError):
    """An answer to a run that has no such question open; nothing changed."""

    def __init__(self, run_id: str, ask: str | None, open_asks: Sequence[str]) -> None:
        self.run_id, self.ask, self.open_asks = run_id, ask, tuple(open_asks)
        if ask is None and open_asks:
            problem = f"has {len(open_asks)} questions open: say which one with ask=, one of {', '.join(open_asks)}"
        elif ask is None:
            problem = "has no question open. A message that it may receive later is sent with rt.send"
        else:
            problem = f"has no open question {ask!r} (open: {', '.join(open_asks) or 'none'})"
        super().__init__(f"run {run_id} {problem}. `holdfast asks` lists what is open.")


class AnswerError(UsageError):
    """An answer does not fit its question; nothing changed."""

    def __init__(self, path: str, problem: str, schema: str = "") -> None:
        self.path, self.problem, self.schema = path, problem, schema
        takes = f". The question takes {schema}" if schema else ""
        super().__init__(f"{path}: {problem}{takes}")


class AnsweredError(UsageError):
    """Another answer, or the end of the time to answer, was first; this one changed nothing."""

    def __init__(self, run_id: str, ask: str) -> None:
        self.run_id, self.ask = run_id, ask
        super().__init__(f"question {ask} of run {run_id} has been answered, or its time has run out; nothing changed.")


class WaitTimeoutError(HoldfastError, TimeoutError):
    """Nobody answered or sent anything in time."""

    def __init__(self, what: str, seconds: float | None = None) -> None:
        self.what, self.seconds = what, seconds
        within = "" if seconds is None else f" within {seconds:g} s"
        super().__init__(f"{what} did not come{within}. Pass default= to go on without.")


class CallInDoubtError(HoldfastError):
    """A call was cut off, nobody knows whether its effect happened, and it must not be repeated unasked."""

    def __init__(self, run_id: str, call: str, key: str) -> None:
        self.run_id, self.call, self.key = run_id, call, key
        super().__init__(
            f"run {run_id}: call {call!r} was cut off while it was under way, and nobody knows whether it was done "
            f"(idempotency key {key}). It was not repeated. Declare on_doubt='ask' and resume the run to decide by an "
            f"answer, or on_doubt='retry' if repeating is safe."
        )


class CallAbandonedError(HoldfastError, TimeoutError):
    """A call that was given up by a timeout before this code ran again; it is not made once more."""

    def __init__(self, call: str) -> None:
        self.call = call
        super().__init__(f"call {call!r} was given up before and is not made again")


class UnknownTargetError(UsageError):
    """A step named a node, member or label that does not exist; the run stays where it is and can be resumed."""

    def __init__(self, where: str, target: object, known: Iterable[object]) -> None:
        self.where, self.target, self.known = where, target, tuple(known)
        names = ", ".join(str(name) for name in self.known) or "none"
        super().__init__(f"{where} chose {ascii(target)[:80]}, which does not exist (there are: {names}).")


class TooManyStepsError(HoldfastError):
    """A graph, team or agent has taken as many steps as it may."""

    def __init__(self, what: str, where: str, limit: int, option: str) -> None:
        self.what, self.where, self.limit = what, where, limit
        super().__init__(
            f"{what} has taken {limit} steps and would go on with {where}. If that is right, raise {option} and resume "
            f"the run; otherwise find what keeps it from ending."
        )


class ModelAnswerError(HoldfastError):
    """A model answered with something that is no message."""

    def __init__(self, agent: str, iteration: int, problem: str) -> None:
        self.agent, self.iteration, self.problem = agent, iteration, problem
        super().__init__(f"the model of agent {agent!r} answered iteration {iteration} with {problem}")
