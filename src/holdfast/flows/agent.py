"""An agent: a model that is called again and again, with the tools that it asks for, until it is done.

Two steps in turn: `model` appends what the model said, `tools` what its tool calls gave. The transcript is the
state, so a run that goes on continues it; each tool call is journaled by its id, so none that finished is repeated
and none is left without its answer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.context import Scope
from holdfast.core.failures import describe
from holdfast.core.policy import CheckpointPolicy, check_policy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import AnswerError, CallInDoubtError, ModelAnswerError, TooManyStepsError, UsageError
from holdfast.flows.base import Position, Step
from holdfast.flows.messages import Gathered, Nonsense, ToolCall, as_message, tool_calls
from holdfast.flows.tools import Tool, as_tool
from holdfast.inside import ask, call_async, emit
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
        self._model = Step(_asking(model), name="model", retry=retry or own.retry, timeout=timeout or own.timeout)
        self._use_tools = Step(self._answer_calls, name="tools")

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

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
        """Its two steps."""
        return ("model", "tools")

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
        return Position(state, {"step": 0, "next": "model", "phase": 0})

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """The step that the cursor comes to, unless its phase is gone."""
        if cursor.get("phase", 0) >= len(self._phases):
            return None
        return {"model": self._model, "tools": self._use_tools}.get(cursor["next"])

    async def advance(self, position: Position, scope: Scope) -> Position:
        """What the model says next, or what the tools it asked for give."""
        cursor, state = position.cursor, position.state
        step = cursor["step"] + 1
        if cursor["next"] == "tools":
            answers = await scope.perform(self._use_tools, state, cursor["phase"])
            state["messages"] += answers
            return Position(state, {"step": step, "next": "model", "phase": cursor["phase"]})
        message, calls = await self._ask_model(scope, state, cursor["phase"])
        state["messages"].append(message)
        state["iteration"] += 1
        if calls:
            return Position(state, {"step": step, "next": "tools", "phase": cursor["phase"]})
        return self._end_phase(state, step, cursor["phase"], message)

    async def _ask_model(
        self, scope: Scope, state: dict[str, Any], place: int
    ) -> tuple[dict[str, Any], list[ToolCall]]:
        phase, iteration = self._phases[place], state["iteration"]
        limit = phase.max_iterations or self._max_iterations
        if iteration >= limit:
            where = f"iteration {iteration + 1}" + (f" of phase {phase.name!r}" if phase.name else "")
            raise TooManyStepsError(f"agent {self.name!r}", where, limit, "max_iterations")
        instructions = "\n\n".join(text for text in (self._instructions, phase.instructions) if text)
        system = [{"role": "system", "content": instructions}] if instructions else []
        shown = [tool.shown for tool in self._tools[place].values()]
        answer = await scope.perform(self._model, [*system, *state["messages"]], shown)
        try:
            message = as_message(answer)
            return message, tool_calls(message)
        except Nonsense as nonsense:
            raise ModelAnswerError(self.name, iteration + 1, str(nonsense)) from None

    def _end_phase(self, state: dict[str, Any], step: int, place: int, message: dict[str, Any]) -> Position:
        phase = self._phases[place]
        state["output"] = message["content"]
        if phase.name:
            state["finished"].append(phase.name)
        if place + 1 == len(self._phases):
            return Position(state, {"step": step, "next": None, "phase": place})
        following = self._phases[place + 1]
        state["phase"], state["iteration"] = following.name or None, 0
        if following.prompt:
            state["messages"].append({"role": "user", "content": following.prompt})
        return Position(state, {"step": step, "next": "model", "phase": place + 1})

    # Tools

    async def _answer_calls(self, state: dict[str, Any], place: int) -> list[dict[str, Any]]:
        """A message for each tool call of the last message, in order; they are made at once."""
        calls, tools = tool_calls(state["messages"][-1]), self._tools[place]
        texts = await asyncio.gather(*(self._answer(tools, one) for one in calls))
        return [
            {"role": "tool", "tool_call_id": one.id, "name": one.name, "content": text}
            for one, text in zip(calls, texts, strict=True)
        ]

    async def _answer(self, tools: dict[str, Tool], wanted: ToolCall) -> str:
        tool = tools.get(wanted.name)
        if tool is None:
            return f"error: there is no tool {wanted.name!r} (there are: {', '.join(tools) or 'none'})"
        try:
            arguments = tool.arguments(wanted.arguments)
        except AnswerError as error:
            return f"error: these arguments do not fit the tool: {error.path}: {error.problem}"
        if tool.approval:
            refusal = await self._approve(tool, wanted, arguments)
            if refusal is not None:
                return refusal
        try:
            return str(await call_async(tool.work(wanted.id), (arguments,), {}))
        except CallInDoubtError:
            raise
        except Exception as error:
            if tool.on_error == "raise":
                raise
            return f"error: {describe(error)}"

    async def _approve(self, tool: Tool, wanted: ToolCall, arguments: dict[str, Any]) -> str | None:
        """None when a person allows the call with exactly these arguments; else what the model is told."""
        data = {"tool": tool.name, "arguments": arguments, "id": wanted.id}
        shown = msgspec.json.encode(arguments).decode()
        question = f"May {self.name} call {tool.name}({shown[:500]})?"
        answer = await ask(question, data=data, schema=_APPROVAL, key=f"approve-{wanted.id}")
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
