"""How a model is asked: whichever way it speaks, its answer becomes a message."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast.emitting import emit
from holdfast.errors import ModelAnswerError
from holdfast.flows.messages import Gathered, Nonsense, as_message, plain, with_ids
from holdfast.work import Work


class Question:
    """One asking of the model, in that iteration of an agent, for the message at that place of the transcript."""

    def __init__(self, agent: str, iteration: int, place: int) -> None:
        self._agent, self._iteration, self._place = agent, iteration, place

    def work(self, model: Work, timeout: float | None) -> Work:
        """What asks: it takes (messages, tools) and gives the message. Raises ModelAnswerError."""
        fn = model.fn
        body = fn if inspect.isroutine(fn) else type(fn).__call__

        async def awaited(messages: list[Any], tools: list[Any]) -> Any:
            return await self._settled(fn(messages, tools))

        def in_thread(messages: list[Any], tools: list[Any]) -> Any:
            answer = fn(messages, tools)
            # What is to be awaited is awaited on the loop, where it belongs.
            later = inspect.isawaitable(answer) or isinstance(answer, AsyncIterator)
            return self._settled(answer) if later else self._message(answer)

        is_async = model.is_async or inspect.isasyncgenfunction(body)
        work = Work(awaited if is_async else in_thread, name="model", timeout=timeout, executor=model.executor)
        work.returns = None  # a message is plain; it need not be made out for each turn
        return work

    async def _settled(self, answer: Any) -> Any:
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, AsyncIterator):
            return self._message(answer)
        whole = Gathered()
        async for chunk in answer:
            chunk = plain(chunk)
            self._sensible(whole.add, chunk)
            await emit("model", chunk)
        return self._message(whole.message())

    def _message(self, answer: Any) -> dict[str, Any]:
        return with_ids(self._sensible(as_message, answer), self._place)

    def _sensible(self, read: Callable[[Any], Any], answer: Any) -> Any:
        try:
            return read(answer)
        except Nonsense as nonsense:
            raise ModelAnswerError(self._agent, self._iteration, str(nonsense)) from None
