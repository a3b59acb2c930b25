"""SIGINT and SIGTERM, told to an event loop, and kept from it where they are meant for a forked child.

What a step forks inherits the handlers of this process and the descriptor that they wake its loop with. Left so, a
SIGTERM for a worker of a pool would stop the run instead of the worker, and one Ctrl-C, which a terminal sends to all
of them, would count once for each. So a child gets the handlers back that were there before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_before: dict[signal.Signals, Any] = {}
"""While a loop is told of signals, the handlers that were there before."""


@contextmanager
def told_to_the_loop(tell: Callable[[signal.Signals], None]) -> Iterator[None]:
    """While inside, the running loop calls `tell` with each signal. Outside of the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in _NUMBERS:
        loop.remove_signal_handler(number)  # one of the same loop is no handler that works without it
        _before[number] = signal.getsignal(number)
        loop.add_signal_handler(number, tell, number)
    try:
        yield
    finally:
        for number in _NUMBERS:
            loop.remove_signal_handler(number)
            if (handler := _before.pop(number, None)) is not None:  # None: not set from Python
                signal.signal(number, handler)


class _Forking(threading.local):
    """What a thread that forks had blocked before."""

    mask: set[int] | None = None


_forking = _Forking()


def _hold_back() -> None:
    # A signal that came to the child before it has its own handlers would be told to the loop of its parent.
    if _before:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)


def _let_through() -> None:
    mask, _forking.mask = _forking.mask, None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _leave_the_loop() -> None:
    if _before:
        signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            signal.signal(number, _for_child(number, handler))
        _before.clear()
    try:
        _let_through()
    except BaseException as end:  # of a handler. Nobody would ever hear of it here, and the child has done nothing yet
        os._exit((end.code or 0) if isinstance(end, SystemExit) and isinstance(end.code, int | None) else 1)


def _for_child(number: signal.Signals, handler: Any) -> Any:
    if number != signal.SIGINT or handler is signal.SIG_IGN:
        return handler or signal.SIG_DFL
    if handler is None or isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner):
        handler = signal.default_int_handler  # that of asyncio.run would call the loop of the parent

    def spare_once(number: int, frame: object) -> None:
        # The first Ctrl-C lets the step finish, and so it lets the processes finish that the step works with.
        signal.signal(number, handler)

    return spare_once


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_leave_the_loop)
