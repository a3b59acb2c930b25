"""An agent: a model that is called again and again, with the tools that it asks for, until it is done.

One step is one turn: the tool calls of the last message are answered, then the model is asked. The transcript is
the state, so a run that goes on continues it; each tool call is journaled by its id, so none that finished is
repeated and none is left without its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.context import Scope, here
from holdfast.core.failures import describe
from holdfast.core.journal import Record
from holdfast.core.policy import CheckpointPolicy, RunLimit, check_limit, check_policy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import (
    AnswerError,
    CallFailedError,
    CallInDoubtError,
    StepTimeoutError,
    TooManyStepsError,
    UsageError,
)
from holdfast.flows.base import FinalFailure, Position, Step
from holdfast.flows.messages import Nonsense, ToolCall, tool_calls, unanswered, with_ids
from holdfast.flows.speaking import Question
from holdfast.flows.tools import Tool, as_text, as_tool
from holdfast.flows.transcript import Transcript
from holdfast.frames import Frame
from holdfast.inside import NOTHING, asking, receive
from holdfast.work import Work, as_work, check_name

USER_TOPIC = "holdfast.user"
_SHOWN = 500

_APPROVAL = {
    "anyOf": [
        {"type": "boolean"},
        {
            "type": "object",
            "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
            "required": ["approved"],
            "additionalProperties": False,
        },
    ]
}


class Phase(msgspec.Struct, frozen=True):
    """A stretch of an agent's work: it ends with a message that calls no tool, and the next phase begins.

    `instructions` are added to the agent's own, `tools` replace them, `prompt` is said by the user at its beginning.
    """

    name: str
    instructions: str | None = None
    tools: Sequence[Any] | None = None
    prompt: str | None = None
    max_iterations: int | None = None


class Agent:
    """A provider-neutral agent loop.

    `model` takes (messages, tools) and gives a message: `def`, `async def`, or an async iterator of chunks, which are
    emitted as they come. Messages are dicts with role, content and tool_calls; tools are typed functions. The result of
    a run is its final state: a dict of messages, iteration, phase, finished (phases) and output.
    """

    def __init__(
        self,
        name: str,
        model: Callable[..., Any],
        tools: Sequence[Any] = (),
        instructions: str | None = None,
        *,
        phases: Sequence[Phase] | None = None,
        max_iterations: int = 50,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        policy: CheckpointPolicy | None = None,
        limit: int | RunLimit | None = None,
    ) -> None:
        self.name, self.policy = check_name("an agent", name), check_policy(policy)
        self.limit = check_limit(limit)
        what = f"agent {name}"
        if not callable(model):
            raise UsageError(f"{what}: a model is a function of (messages, tools), not {model!r}")
        self._model, self._instructions = as_work(model), instructions
        self._timeout = self._model.timeout if timeout is None else timeout
        self._phases = _checked(what, [Phase("")] if phases is None else phases)
        self._limits = [_limit(what, one.max_iterations, max_iterations) for one in self._phases]
        self._tools = [_by_name(what, tools if one.tools is None else one.tools) for one in self._phases]
        # One step for each phase, so that a run says which one it is in.
        retry = self._model.retry if retry is None else retry
        self._turns = [Step(self._model.fn, name=phase.name or "turn", retry=retry) for phase in self._phases]
        Work(self._model.fn, name="model", timeout=self._timeout)  # refuses what is no timeout

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def send(self, run: Any, text: str) -> Any:
        """Say something to a running or waiting conversation, given by its handle: the model hears it at its next turn.

        Durable when this returns; awaited, unless the handle is that of a blocking runtime. What comes while the model
        gives its last answer makes the conversation go on. `rt.send(id, "holdfast.user", text)` does the same.
        """
        if not isinstance(text, (str, list)):
            raise UsageError(f"agent {self.name}: a user says a text, not {ascii(text)[:80]}")
        return run.send(USER_TOPIC, text)

    # What the engine asks

    @property
    def result_type(self) -> Any:
        """A dict."""
        return dict

    @property
    def types(self) -> Iterable[Any]:
        """Messages are plain data."""
        return []

    @property
    def step_names(self) -> tuple[str, ...]:
        """Its phases, or its one step, which is taken again and again."""
        return tuple(dict.fromkeys(turn.called for turn in self._turns))

    @property
    def total_steps(self) -> int | None:
        """Not known."""
        return None

    def start(self, input: Any) -> Position:
        """The input is what the user says: a text, messages, or a dict that has `messages`."""
        messages = _first_messages(self.name, input)
        first = self._phases[0]
        state = {"messages": messages, "iteration": 0, "phase": first.name or None, "finished": [], "output": None}
        if first.prompt:
            messages.append({"role": "user", "content": first.prompt})
        return Position(state, self._cursor(0, 0))

    def fit_state(self, state: Any, before: dict[str, Any]) -> dict[str, Any]:
        """What a user gives in the place of the state before: all of it, or as much as `start` takes."""
        return {**before, **(state if isinstance(state, dict) else {}), "messages": _first_messages(self.name, state)}

    def _cursor(self, step: int, place: int) -> dict[str, Any]:
        # Every entry of the log repeats it, so it says no more than it must.
        return {"step": step, "next": self._turns[place].called, **({"phase": place} if place else {})}

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """A turn of the phase, unless that is gone."""
        place = self._place(cursor)
        return None if place is None else self._turns[place]

    def _place(self, cursor: dict[str, Any]) -> int | None:
        """Which phase it is: by its name, where others were put in before it or taken out."""
        place, names = cursor.get("phase", 0), [turn.called for turn in self._turns]
        if names[place : place + 1] == [cursor["next"]]:
            return int(place)
        return names.index(cursor["next"]) if names.count(cursor["next"]) == 1 else None

    raw_state = True
    """It only ever appends to the transcript, so it knows what changes and never looks through the rest."""

    async def advance(self, position: Position, scope: Scope) -> Position:
        """One more turn."""
        cursor, growing = position.cursor, Transcript(position.state, scope)
        place, step = self._place(cursor), cursor["step"] + 1
        frame = here()
        assert frame is not None
        assert place is not None
        await self._answer_calls(frame, growing, place)
        message = await self._ask_model(frame, growing, place)
        growing.put("iteration", growing.state["iteration"] + 1)
        # Whoever spoke meanwhile is heard before the phase ends.
        if tool_calls(message) or await self._hear_user(frame, growing):
            return growing.position(self._cursor(step, place))
        return self._end_phase(growing, step, place, message)

    async def _hear_user(self, frame: Frame, growing: Transcript, *, new: bool = True) -> bool:
        """Append what was said with `send` since the last time; False when that is nothing."""
        before = len(growing)
        while frame.scope.has_message(frame, USER_TOPIC, new=new):
            said = await receive(USER_TOPIC)
            # Anybody may send anything: what is no text becomes one, and not a message that no model could read.
            growing.say({"role": "user", "content": said if isinstance(said, (str, list)) else as_text(said)})
        return len(growing) > before

    async def _ask_model(self, frame: Frame, growing: Transcript, place: int) -> dict[str, Any]:
        """What the model says to all that was said before, which is appended."""
        scope, iteration = frame.scope, growing.state["iteration"]
        # Where the turn may be taken again though its tools were called, the model must not think of others then: its
        # answer is journaled. One that is found has not heard what came since.
        spot = frame.take("model", None, None) if scope.skips_saves else None
        await self._hear_user(frame, growing, new=spot is None or not scope.found(spot))
        self._check_limit(place, iteration)
        work = Question(self.name, iteration + 1, len(growing)).work(self._model, self._timeout)
        asked = (growing.after(self._system(place)), [tool.shown for tool in self._tools[place].values()])
        seq = None
        if spot is None:
            message = await self._performed(scope, work, asked)
        else:
            message = await scope.call(spot, work, asked, {})
            seq = scope.entry_of(spot)
        growing.say(message, seq)
        said: dict[str, Any] = message
        return said

    def _check_limit(self, place: int, iteration: int) -> None:
        limit, name = self._limits[place], self._phases[place].name
        if iteration >= limit:
            where = f"iteration {iteration + 1}" + (f" of phase {name!r}" if name else "")
            raise TooManyStepsError(f"agent {self.name!r}", where, limit, "max_iterations")

    def _system(self, place: int) -> list[dict[str, Any]]:
        instructions = "\n\n".join(text for text in (self._instructions, self._phases[place].instructions) if text)
        return [{"role": "system", "content": instructions}] if instructions else []

    async def _performed(self, scope: Scope, work: Work, asked: tuple[Any, ...]) -> Any:
        """The answer, which is saved with the turn: no commit of its own is needed."""
        try:
            async with asyncio.timeout(self._timeout):
                return await scope.perform(work, *asked)
        except TimeoutError:
            assert self._timeout is not None
            raise StepTimeoutError("model", self._timeout) from None

    def _end_phase(self, growing: Transcript, step: int, place: int, message: dict[str, Any]) -> Position:
        phase = self._phases[place]
        growing.put("output", message["content"])
        if phase.name:
            growing.put("finished", [*growing.state["finished"], phase.name])
        if place + 1 == len(self._phases):
            return growing.position({**self._cursor(step, place), "next": None})
        following = self._phases[place + 1]
        growing.put("phase", following.name or None)
        growing.put("iteration", 0)
        if following.prompt:
            growing.say({"role": "user", "content": following.prompt})
        return growing.position(self._cursor(step, place + 1))

    # Tools

    async def _answer_calls(self, frame: Frame, growing: Transcript, place: int) -> None:
        """Answer each tool call of the last message, in order; they are made at once."""
        calls = unanswered(growing.backwards())
        calling: set[asyncio.Task[Any]] = set()
        answers = [asyncio.ensure_future(self._answer(frame, self._tools[place], one, calling)) for one in calls]
        if answers:
            await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
        if calling and not all(answer.done() for answer in answers):
            # One has failed and fails the turn. The others come to their end, so that none of them is in doubt; only
            # people are not waited for.
            await asyncio.wait(calling)
        failures = [answer.exception() for answer in answers if answer.done()]
        for failure in sorted(filter(None, failures), key=lambda one: not isinstance(one, FinalFailure)):
            raise failure
        for one, answer in zip(calls, answers, strict=True):
            growing.answer(one, *answer.result())

    async def _answer(
        self, frame: Frame, tools: dict[str, Tool], wanted: ToolCall, calling: set[asyncio.Task[Any]]
    ) -> tuple[str, int | None]:
        """What a tool call gave, and the entry that holds it."""
        scope = frame.scope
        # In the frame of the turn, whichever task makes the call: its id tells it from the others, and its message
        # is durable, so that its arguments need not be compared.
        place = frame.take(wanted.name, None, wanted.key)
        before = scope.record(place)
        tool, arguments, problem = _fitted(tools, wanted)
        if tool is None:
            if before is None:
                return problem, None
            work = _changed(wanted, problem, before)
        else:
            work = tool.work(wanted.key)
        if tool is not None and tool.approval:
            # The arguments are part of its key: no answer is ever found for others than those that were shown.
            key = f"{wanted.key}-{scope.digest(arguments)}"
            if before is not None and before.ended is not None:
                scope.record(frame.take("ask", None, key))  # it was allowed, or needed nobody's leave then
            elif (refusal := await self._approve(frame, tool, wanted, arguments, key)) is not None:
                return refusal, None
        task = asyncio.current_task()
        assert task is not None
        calling.add(task)
        try:
            given = await scope.call(place, work, (arguments,), {})
            # A person who was asked what came of a call in doubt may have given something else than a text.
            return (given, scope.entry_of(place)) if type(given) is str else (as_text(given), None)
        except CallInDoubtError:
            raise
        except Exception as error:
            if tool is not None and tool.on_error == "raise":
                raise FinalFailure(error) from None  # the retry of the turn is the model's, and not for tools
            if tool is not None and tool.leaves_in_doubt(error):
                raise
            # One that the log cannot build again carries what it said when it happened: the model hears the same.
            return f"error: {error.error if isinstance(error, CallFailedError) else describe(error)}", None

    async def _approve(
        self, frame: Frame, tool: Tool, wanted: ToolCall, arguments: dict[str, Any], key: str
    ) -> str | None:
        """None when a person allows the call with exactly these arguments; else what the model is told."""
        data = {"tool": tool.name, "arguments": arguments, "id": wanted.id}
        shown = msgspec.json.encode(arguments).decode()
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]} ... all of it is in the data"
        question = f"May {self.name} call {tool.name}({shown})?"
        answer = await asking(frame, question, data, _APPROVAL, None, NOTHING, key)
        allowed = answer if isinstance(answer, bool) else answer["approved"]
        reason = "" if isinstance(answer, bool) else answer.get("reason", "")
        return None if allowed else "refused: a person did not allow this call" + (f": {reason}" if reason else "")


def _fitted(tools: dict[str, Tool], wanted: ToolCall) -> tuple[Tool | None, Any, str]:
    """The tool and the arguments of a call. No tool when it cannot be made, and why."""
    tool = tools.get(wanted.name)
    if tool is None:
        known = ", ".join(tools) or "none"
        return None, wanted.arguments, f"error: there is no tool {wanted.name!r} (there are: {known})"
    try:
        return tool, tool.arguments(wanted.arguments), ""
    except AnswerError as error:
        problem = f"error: these arguments do not fit the tool: {error.path}: {error.problem}"
        return None, wanted.arguments, problem


def _changed(wanted: ToolCall, problem: str, before: Record) -> Work:
    """What stands for a call that was made, or begun, and could not be made any more as the program is now.

    What was done counts, and what is in doubt stays in doubt. Only if it is to be made again is the model told.
    """

    async def tell(given: Any) -> str:
        return problem

    return Work(tell, name=wanted.name, key=wanted.key, on_doubt=before.body.get("on_doubt") or "ask")


def _checked(what: str, phases: Sequence[Phase]) -> list[Phase]:
    phases = list(phases)
    if not phases:
        raise UsageError(f"{what} has an empty list of phases; leave phases= out to have none")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise UsageError(f"{what}: {phase!r} is no phase; write Phase('its name', instructions='...')")
        if phase.name:
            check_name(f"a phase of {what}", phase.name)
    return phases


def _limit(what: str, own: int | None, general: int) -> int:
    limit = general if own is None else own
    if type(limit) is not int or limit < 1:
        raise UsageError(f"{what}: max_iterations={limit!r} must be a whole number of at least 1")
    return limit


def _by_name(what: str, tools: Sequence[Any]) -> dict[str, Tool]:
    named: dict[str, Tool] = {}
    if isinstance(tools, (str, bytes)) or not isinstance(tools, Iterable):
        raise UsageError(f"{what}: its tools are a list of functions, not {tools!r}")
    for one in map(as_tool, tools):
        if one.name in named:
            raise UsageError(f"{what} has two tools named {one.name!r}: give one of them another with name=")
        named[one.name] = one
    return named


def _first_messages(agent: str, input: Any) -> list[dict[str, Any]]:
    if isinstance(input, dict) and "messages" in input:
        input = input["messages"]
    if isinstance(input, str):
        return [{"role": "user", "content": input}]
    if input is None:
        return []
    if not isinstance(input, list) or not all(isinstance(message, dict) and "role" in message for message in input):
        raise UsageError(f"agent {agent} begins with a text, a list of messages, or a dict that has `messages`")
    try:
        for message in input:
            tool_calls(message)
    except Nonsense as nonsense:
        raise UsageError(f"agent {agent} begins with messages of which one has {nonsense}") from None
    return [with_ids(dict(message), place) for place, message in enumerate(input)]
