"""The same runtime for programs without an event loop: each method waits for its result.

    from holdfast.blocking import Runtime

    with Runtime("sqlite:runs.db") as rt:
        rt.run(report, {"topic": "tides"}, id="r1")

A thread of its own runs the event loop, so live runs go on while the program does something else.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

import holdfast.runtime as face
from holdfast import handles
from holdfast.blocking.loops import cancel, leave_behind
from holdfast.engine.verbs import MISSING
from holdfast.errors import UsageError
from holdfast.flows.base import Flow
from holdfast.model import Ask, Call, Checkpoint, Event, Health, Problem, Run, RunStatus, Worker
from holdfast.store.base import Store

R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _like(method: Callable[..., Any]) -> Callable[[F], F]:
    """Give a forwarding method the documentation of the one it forwards to."""

    def documented(forward: F) -> F:
        forward.__doc__ = method.__doc__
        return forward

    return documented


_NOT_OPEN = "this Runtime is not open. Use it inside `with Runtime(...) as rt:`"


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._handing_over = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        if left := asyncio.all_tasks(self._loop):
            leave_behind(left, told=left)
        self._loop.close()

    @property
    def inherited(self) -> bool:
        """Whether this is a child process, in which the thread does not go on."""
        return self._pid != os.getpid()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises."""
        if self.inherited:
            work.close()
            raise UsageError("this Runtime was opened before a fork. Open a new one in the child process.")
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                "this runs on the event loop itself, as on_event does, and would wait for itself for ever. "
                "Hand the work to another thread."
            )
        with self._handing_over:
            if self._closed:
                work.close()
                raise UsageError(_NOT_OPEN)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            if self._closed:
                raise UsageError(f"{_NOT_OPEN}. It was closed while this waited; its runs were handed back") from None
            raise
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: the run itself goes on
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator, one by one."""

        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            more, item = self.wait(following())
            if not more:
                return
            yield item

    def close(self) -> None:
        """End the thread. Whoever still waits for something is told, iterators not read to their end are closed."""
        with self._handing_over:
            if self._closed:
                return  # another thread is at it
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _wind_up(self) -> None:
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await cancel(others)
        await self._loop.shutdown_asyncgens()


class RunHandle(Generic[R]):
    """A run, wherever it is driven."""

    def __init__(self, loop: Loop, handle: handles.RunHandle[R]) -> None:
        self._loop, self._handle = loop, handle
        self.id = handle.id

    def __repr__(self) -> str:
        return repr(self._handle)

    @_like(handles.RunHandle.result)
    def result(self) -> R:
        return self._loop.wait(self._handle.result())

    @_like(handles.RunHandle.pause)
    def pause(self) -> None:
        self._loop.wait(self._handle.pause())

    @_like(handles.RunHandle.resume)
    def resume(self) -> None:
        self._loop.wait(self._handle.resume())

    @_like(handles.RunHandle.cancel)
    def cancel(self, reason: str | None = None) -> None:
        self._loop.wait(self._handle.cancel(reason))

    @_like(handles.RunHandle.checkpoint)
    def checkpoint(self) -> str:
        return self._loop.wait(self._handle.checkpoint())

    @_like(handles.RunHandle.send)
    def send(self, topic: str, data: Any = None) -> None:
        self._loop.wait(self._handle.send(topic, data))

    @_like(handles.RunHandle.answer)
    def answer(self, value: Any, *, ask: str | None = None) -> str:
        return self._loop.wait(self._handle.answer(value, ask=ask))


class Runtime:
    """`holdfast.Runtime` for programs without an event loop. Use it as `with Runtime(...) as rt`."""

    def __init__(
        self, store: str | os.PathLike[str] | Store | None = MISSING, **settings: Unpack[face.Settings]
    ) -> None:
        self._runtime = face.Runtime(store, **settings)
        self._thread: Loop | None = None

    def __enter__(self) -> Self:
        self._thread = Loop()
        try:
            self._loop.wait(self._runtime.__aenter__())
        except BaseException:
            self._thread.close()
            self._thread = None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @_like(face.Runtime.close)
    def close(self) -> None:
        if self._thread is not None:
            if not self._thread.inherited:  # a child process has nothing to close
                self._loop.wait(self._runtime.close())
                self._thread.close()
            self._thread = None

    @property
    def _loop(self) -> Loop:
        if self._thread is None:
            raise UsageError(_NOT_OPEN)
        return self._thread

    def _handle(self, work: Coroutine[Any, Any, handles.RunHandle[R]]) -> RunHandle[R]:
        return RunHandle(self._loop, self._loop.wait(work))

    @_like(face.Runtime.register)
    def register(self, *items: Any) -> None:
        self._runtime.register(*items)

    @_like(face.Runtime.run)
    def run(
        self,
        flow: Flow[R],
        input: Any = MISSING,
        *,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        parent: str | None = None,
        until: Literal["ended", "settled"] = "ended",
    ) -> R:
        return self._loop.wait(self._runtime.run(flow, input, id=id, metadata=metadata, parent=parent, until=until))

    @_like(face.Runtime.start)
    def start(
        self,
        flow: Flow[R],
        input: Any = None,
        *,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        parent: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: float | timedelta | None = None,
        key: str | None = None,
    ) -> RunHandle[R]:
        return self._handle(
            self._runtime.start(
                flow,
                input,
                id=id,
                metadata=metadata,
                parent=parent,
                queue=queue,
                priority=priority,
                delay=delay,
                key=key,
            )
        )

    @_like(face.Runtime.health)
    def health(self) -> Health:
        return self._runtime.health()

    @_like(face.Runtime.workers)
    def workers(self) -> builtins.list[Worker]:
        return self._loop.wait(self._runtime.workers())

    @_like(face.Runtime.resume)
    def resume(self, ref: str) -> RunHandle[Any]:
        return self._handle(self._runtime.resume(ref))

    @_like(face.Runtime.rewind)
    def rewind(self, ref: str) -> RunHandle[Any]:
        return self._handle(self._runtime.rewind(ref))

    @_like(face.Runtime.fork)
    def fork(
        self,
        ref: str,
        *,
        id: str | None = None,
        state: Any = MISSING,
        metadata: dict[str, Any] | None = None,
        raw: bool = False,
    ) -> RunHandle[Any]:
        return self._handle(self._runtime.fork(ref, id=id, state=state, metadata=metadata, raw=raw))

    @_like(face.Runtime.pause)
    def pause(self, id: str) -> None:
        self._loop.wait(self._runtime.pause(id))

    @_like(face.Runtime.cancel)
    def cancel(self, id: str, reason: str | None = None) -> None:
        self._loop.wait(self._runtime.cancel(id, reason))

    @_like(face.Runtime.recover)
    def recover(self) -> list[RunHandle[Any]]:
        return [RunHandle(self._loop, handle) for handle in self._loop.wait(self._runtime.recover())]

    @_like(face.Runtime.interrupted)
    def interrupted(self) -> list[Run]:
        return self._loop.wait(self._runtime.interrupted())

    @_like(face.Runtime.get)
    def get(self, id: str) -> Run | None:
        return self._loop.wait(self._runtime.get(id))

    @_like(face.Runtime.list)
    def list(
        self,
        *,
        status: RunStatus | str | Iterable[RunStatus | str] | None = None,
        flow: str | Iterable[str] | None = None,
        metadata: dict[str, Any] | None = None,
        parent: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[Run]:
        return self._loop.iterate(
            self._runtime.list(
                status=status,
                flow=flow,
                metadata=metadata,
                parent=parent,
                created_after=created_after,
                created_before=created_before,
                limit=limit,
                after=after,
            )
        )

    page = staticmethod(face.Runtime.page)

    @_like(face.Runtime.checkpoints)
    def checkpoints(self, id: str, *, raw: bool = False) -> Iterator[Checkpoint]:
        return self._loop.iterate(self._runtime.checkpoints(id, raw=raw))

    @_like(face.Runtime.load)
    def load(self, ref: str, *, raw: bool = False) -> Checkpoint | None:
        return self._loop.wait(self._runtime.load(ref, raw=raw))

    @_like(face.Runtime.result)
    def result(self, id: str, *, raw: bool = False) -> Any:
        return self._loop.wait(self._runtime.result(id, raw=raw))

    @_like(face.Runtime.doctor)
    def doctor(self) -> Iterator[Problem]:
        return self._loop.iterate(self._runtime.doctor())

    @_like(face.Runtime.events)
    def events(self, id: str, *, after: int | Event = 0, follow: bool = False) -> Iterator[Event]:
        return self._loop.iterate(self._runtime.events(id, after=after, follow=follow))

    @_like(face.Runtime.ledger)
    def ledger(self, id: str) -> Iterator[Call]:
        return self._loop.iterate(self._runtime.ledger(id))

    @_like(face.Runtime.send)
    def send(self, id: str, topic: str, data: Any = None) -> None:
        self._loop.wait(self._runtime.send(id, topic, data))

    @_like(face.Runtime.answer)
    def answer(self, id: str, value: Any, *, ask: str | None = None) -> str:
        return self._loop.wait(self._runtime.answer(id, value, ask=ask))

    @_like(face.Runtime.asks)
    def asks(self, id: str | None = None, *, raw: bool = False) -> Iterator[Ask]:
        return self._loop.iterate(self._runtime.asks(id, raw=raw))

    @_like(face.Runtime.delete)
    def delete(self, id: str) -> None:
        self._loop.wait(self._runtime.delete(id))

    @_like(face.Runtime.prune)
    def prune(self) -> int:
        return self._loop.wait(self._runtime.prune())
