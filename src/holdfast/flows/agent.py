"""An agent: a model that is called again and again, with the tools that it asks for, until it is done.

One step is one turn: the tool calls of the last message are answered, then the model is asked. The transcript is
the state, so a run that goes on continues it; each tool call is journaled by its id, so none that finished is
repeated and none is left without its answer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.context import Frame, Scope, here
from holdfast.core.failures import describe
from holdfast.core.policy import CheckpointPolicy, check_policy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import AnswerError, CallInDoubtError, ModelAnswerError, TooManyStepsError, UsageError
from holdfast.flows.base import Position, Step
from holdfast.flows.messages import Gathered, Nonsense, ToolCall, as_message, tool_calls
from holdfast.flows.tools import Tool, as_tool
from holdfast.flows.transcript import Transcript
from holdfast.inside import NOTHING, asking, emit, receive
from holdfast.work import as_work, check_name

USER_TOPIC = "holdfast.user"

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
    ) -> None:
        self.name, self.policy = check_name("an agent", name), check_policy(policy)
        if type(max_iterations) is not int or max_iterations < 1:
            raise UsageError(f"agent {name}: max_iterations={max_iterations!r} must be a whole number of at least 1")
        self._instructions, self._max_iterations = instructions, max_iterations
        self._phases = list(phases) if phases is not None else [Phase("")]
        if not self._phases:
            raise UsageError(f"agent {name} has an empty list of phases; leave phases= out to have none")
        self._tools = [_by_name(name, phase.tools if phase.tools is not None else tools) for phase in self._phases]
        own = as_work(model)
        self._model, self._timeout = Step(_asking(model), name="model"), timeout or own.timeout
        self._turn = Step(_asking(model), name="turn", retry=retry or own.retry)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def send(self, run: Any, text: str) -> Any:
        """Say something to a running or waiting conversation, given by its handle: the model hears it at its next turn.

        Durable when this returns; awaited, unless the handle is that of a blocking runtime.
        """
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
        """Its one step, which is taken again and again."""
        return ("turn",)

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
        return Position(state, {"step": 0, "next": "turn", "phase": 0})

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """A turn, unless its phase is gone."""
        return self._turn if cursor["next"] == "turn" and cursor.get("phase", 0) < len(self._phases) else None

    raw_state = True
    """It only ever appends to the transcript, so it knows what changes and never looks through the rest."""

    async def advance(self, position: Position, scope: Scope) -> Position:
        """One more turn."""
        cursor, growing = position.cursor, Transcript(position.state, scope)
        place, step = cursor["phase"], cursor["step"] + 1
        await self._answer_calls(growing, place)
        await self._hear_user(scope, growing)
        message, calls = await self._ask_model(scope, growing, place)
        growing.say(message)
        growing.put("iteration", growing.state["iteration"] + 1)
        if calls:
            return growing.position({"step": step, "next": "turn", "phase": place})
        return self._end_phase(growing, step, place, message)

    async def _hear_user(self, scope: Scope, growing: Transcript) -> None:
        """What was said with `send` since the last time."""
        frame = here()
        assert frame is not None
        while scope.has_message(frame, USER_TOPIC):
            growing.say({"role": "user", "content": await receive(USER_TOPIC)})

    async def _ask_model(self, scope: Scope, growing: Transcript, place: int) -> tuple[dict[str, Any], list[ToolCall]]:
        phase, iteration = self._phases[place], growing.state["iteration"]
        limit = phase.max_iterations or self._max_iterations
        if iteration >= limit:
            where = f"iteration {iteration + 1}" + (f" of phase {phase.name!r}" if phase.name else "")
            raise TooManyStepsError(f"agent {self.name!r}", where, limit, "max_iterations")
        instructions = "\n\n".join(text for text in (self._instructions, phase.instructions) if text)
        system = [{"role": "system", "content": instructions}] if instructions else []
        shown = [tool.shown for tool in self._tools[place].values()]
        async with asyncio.timeout(self._timeout):
            answer = await scope.perform(self._model, [*system, *growing.messages], shown)
        try:
            message = as_message(answer)
            return message, tool_calls(message)
        except Nonsense as nonsense:
            raise ModelAnswerError(self.name, iteration + 1, str(nonsense)) from None

    def _end_phase(self, growing: Transcript, step: int, place: int, message: dict[str, Any]) -> Position:
        phase = self._phases[place]
        growing.put("output", message["content"])
        if phase.name:
            growing.put("finished", [*growing.state["finished"], phase.name])
        if place + 1 == len(self._phases):
            return growing.position({"step": step, "next": None, "phase": place})
        following = self._phases[place + 1]
        growing.put("phase", following.name or None)
        growing.put("iteration", 0)
        if following.prompt:
            growing.say({"role": "user", "content": following.prompt})
        return growing.position({"step": step, "next": "turn", "phase": place + 1})

    # Tools

    async def _answer_calls(self, growing: Transcript, place: int) -> None:
        """Answer each tool call of the last message, in order; they are made at once."""
        calls = tool_calls(growing.messages[-1]) if growing.messages else []
        frame = here()
        assert frame is not None
        answers = await asyncio.gather(*(self._answer(frame, self._tools[place], one) for one in calls))
        for one, (text, seq) in zip(calls, answers, strict=True):
            growing.answer(one, text, seq)

    async def _answer(self, frame: Frame, tools: dict[str, Tool], wanted: ToolCall) -> tuple[str, int | None]:
        """What a tool call gave, and the entry that holds it."""
        tool = tools.get(wanted.name)
        if tool is None:
            return f"error: there is no tool {wanted.name!r} (there are: {', '.join(tools) or 'none'})", None
        try:
            arguments = tool.arguments(wanted.arguments)
        except AnswerError as error:
            return f"error: these arguments do not fit the tool: {error.path}: {error.problem}", None
        if tool.approval:
            refusal = await self._approve(frame, tool, wanted, arguments)
            if refusal is not None:
                return refusal, None
        try:
            work = tool.work(wanted.id)
            # In the frame of the turn, whichever task makes the call: its id tells it from the others.
            place = frame.take(work.called, frame.scope.digest((arguments,)), wanted.id)
            text = str(await frame.scope.call(place, work, (arguments,), {}))
            return text, frame.scope.entry_of(place)
        except CallInDoubtError:
            raise
        except Exception as error:
            if tool.on_error == "raise":
                raise
            return f"error: {describe(error)}", None

    async def _approve(self, frame: Frame, tool: Tool, wanted: ToolCall, arguments: dict[str, Any]) -> str | None:
        """None when a person allows the call with exactly these arguments; else what the model is told."""
        data = {"tool": tool.name, "arguments": arguments, "id": wanted.id}
        shown = msgspec.json.encode(arguments).decode()
        question = f"May {self.name} call {tool.name}({shown[:500]})?"
        answer = await asking(frame, question, data, _APPROVAL, None, NOTHING, wanted.id)
        allowed = answer if isinstance(answer, bool) else answer["approved"]
        reason = "" if isinstance(answer, bool) else answer.get("reason", "")
        return None if allowed else "refused: a person did not allow this call" + (f": {reason}" if reason else "")


def _asking(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model as a function that gives a message, whichever way it speaks."""
    fn = as_work(model).fn
    body = fn if inspect.isroutine(fn) else type(fn).__call__
    if not (inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body)):
        return fn  # in a thread; what it returns may still be awaited or iterated

    async def asked(messages: list[Any], tools: list[Any]) -> Any:
        answer = fn(messages, tools)
        if inspect.isawaitable(answer):
            answer = await answer
        return await _gathered(answer) if isinstance(answer, AsyncIterator) else answer

    return asked


async def _gathered(chunks: AsyncIterator[Any]) -> dict[str, Any]:
    whole = Gathered()
    async for chunk in chunks:
        whole.add(chunk)
        await emit("model", chunk)
    return whole.message()


def _by_name(agent: str, tools: Sequence[Any]) -> dict[str, Tool]:
    named: dict[str, Tool] = {}
    for one in map(as_tool, tools):
        if one.name in named:
            raise UsageError(f"agent {agent} has two tools named {one.name!r}: give one of them another with name=")
        named[one.name] = one
    return named


def _first_messages(agent: str, input: Any) -> list[dict[str, Any]]:
    if isinstance(input, dict) and "messages" in input:
        input = input["messages"]
    if isinstance(input, str):
        return [{"role": "user", "content": input}]
    if input is None:
        return []
    if isinstance(input, list) and all(isinstance(message, dict) and "role" in message for message in input):
        return [dict(message) for message in input]
    raise UsageError(f"agent {agent} begins with a text, a list of messages, or a dict that has `messages`")
