"""Tools: typed functions that a model may call. Their JSON Schema comes from their annotations."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Literal, overload

import msgspec

from holdfast.core.answers import answer_value, fit_answer, schema_tree
from holdfast.core.retry import RetryPolicy
from holdfast.errors import AnswerError, StepTimeoutError, UsageError
from holdfast.work import OnDoubt, Work, as_work, is_process_pool


class Tool:
    """A function as a tool. `approval=True` has a person asked before each call, with the arguments shown.

    `on_doubt` says what to do when the process died in a call. With `on_error="raise"` a failure fails the run; else it
    becomes a message to the model.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        approval: bool = False,
        on_doubt: OnDoubt | None = None,
        on_error: Literal["message", "raise"] = "message",
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        executor: Executor | None = None,
    ) -> None:
        own = as_work(fn)
        self.name = name or own.called
        if type(approval) is not bool:
            raise UsageError(f"tool {self.name!r}: approval={approval!r} must be True or False")
        if on_error not in ("message", "raise"):
            raise UsageError(f"tool {self.name!r}: on_error={on_error!r} must be 'message' or 'raise'")
        self.fn, self.approval, self.on_error = own.fn, approval, on_error
        self.description = description or inspect.getdoc(own.fn) or ""
        self._work = own
        self._options: dict[str, Any] = {
            "retry": own.retry if retry is None else retry,
            "timeout": own.timeout if timeout is None else timeout,
            "on_doubt": own.on_doubt if on_doubt is None else on_doubt,
            "executor": own.executor if executor is None else executor,
        }
        self.work("")  # refuses options that are none
        if is_process_pool(self._options["executor"]):
            raise UsageError(
                f"tool {self.name!r} cannot run in a process pool: its arguments and what the model is told are made "
                f"here. Let it await call.options(executor=...) of a function instead."
            )
        self._declared, self.schema = _parameters(self.name, own.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def shown(self) -> dict[str, Any]:
        """What a model is told of it."""
        return {"name": self.name, "description": self.description, "parameters": self.schema}

    def leaves_in_doubt(self, error: Exception) -> bool:
        """Whether the call may have been done: a model that heard of a failure would just make another."""
        return isinstance(error, StepTimeoutError) and self._options["on_doubt"] != "retry"

    def arguments(self, given: Any) -> dict[str, Any]:
        """The arguments as plain JSON that fits the schema. Raises AnswerError that says what does not fit."""
        if isinstance(given, (str, bytes)):
            try:
                given = msgspec.json.decode(given or "{}")
            except msgspec.DecodeError as error:
                raise AnswerError("arguments", f"they are not JSON: {error}") from error
            except RecursionError:
                raise AnswerError("arguments", "they are nested too deeply") from None
        try:
            fitted: dict[str, Any] = fit_answer(self.schema, {} if given is None else given)
            self._typed(fitted)  # what only the types themselves can say is said before anybody is asked
        except AnswerError as error:
            raise AnswerError("arguments" + error.path.removeprefix("answer"), error.problem) from error
        return fitted

    def work(self, key: str) -> Work:
        """What does the call of that id: it takes the plain arguments and gives the text that the model is told."""
        work = Work(self._awaited if self._work.is_async else self._plain, name=self.name, key=key, **self._options)
        work.returns = str  # known, so that it need not be made out for each call
        return work

    async def _awaited(self, given: dict[str, Any]) -> str:
        return as_text(await self.fn(**self._typed(given)))

    def _plain(self, given: dict[str, Any]) -> Any:
        result = self.fn(**self._typed(given))
        return _text_of(result) if inspect.isawaitable(result) else as_text(result)

    def _typed(self, given: dict[str, Any]) -> dict[str, Any]:
        typed = {}
        for name, value in given.items():
            try:
                typed[name] = answer_value(self._declared.get(name), value)
            except AnswerError as error:
                raise AnswerError(f"answer.{name}" + error.path.removeprefix("answer"), error.problem) from error
        return typed


async def _text_of(later: Awaitable[Any]) -> str:
    return as_text(await later)


def as_text(result: Any) -> str:
    """What a tool gave, as text for a model."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result, enc_hook=_dumped).decode()
    except (TypeError, ValueError):
        return str(result)


def _dumped(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is nothing that JSON has")
    return dump(mode="json")


def _parameters(name: str, fn: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The declared type of each parameter, and the JSON Schema of all of them."""
    function = inspect.unwrap(fn)
    try:
        hints = inspect.get_annotations(
            function if hasattr(function, "__code__") else type(function).__call__, eval_str=True
        )
    except NameError as error:
        raise UsageError(f"tool {name!r}: its annotations name what is not known in its module: {error}") from error
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    required, declared = list[str](), dict[str, Any]()
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"tool {name!r}: parameter {parameter.name!r} cannot be named, so no model could give it")
        annotation = hints.get(parameter.name)
        try:
            schema = dict(schema_tree(annotation) or {}) if annotation is not None and annotation is not Any else {}
        except UsageError as error:
            raise UsageError(f"tool {name!r}: parameter {parameter.name!r}: {error}") from error
        definitions |= schema.pop("$defs", {})
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema |= _default(parameter.default)
        properties[parameter.name] = schema
        declared[parameter.name] = None if annotation is Any else annotation
    whole = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return declared, whole | ({"$defs": definitions} if definitions else {})


def _default(value: Any) -> dict[str, Any]:
    """What a model is told of a default: nothing when JSON has no word for it."""
    return {"default": value} if value is None or type(value) in (bool, int, float, str) else {}


def as_tool(value: Any) -> Tool:
    """The tool itself, or one made of a function."""
    return value if isinstance(value, Tool) else Tool(value)


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: bool = False,
    on_doubt: OnDoubt | None = None,
    on_error: Literal["message", "raise"] = "message",
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    executor: Executor | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function; `@tool` and `@tool(approval=True)` both work. See `Tool` for the options."""
    return Tool(fn) if fn is not None else lambda function: Tool(function, **options)
