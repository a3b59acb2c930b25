"""A function that a run may be asked to do, with how it is to be done."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from types import FunctionType
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

from holdfast.core.durations import is_duration
from holdfast.core.ids import storable
from holdfast.core.retry import RetryPolicy
from holdfast.errors import UsageError

OnDoubt = Literal["retry", "fail", "ask"]


def check_name(what: str, name: object) -> str:
    """The name itself. Raises UsageError for what cannot be stored and shown verbatim."""
    if type(name) is not str or not 0 < len(name) <= 200 or any(_is_unstorable(char) for char in name):
        raise UsageError(f"the name of {what} is a text of 1 to 200 characters, not {ascii(name)[:80]}")
    return name


def _is_unstorable(char: str) -> bool:
    return char == "\0" or "\ud800" <= char <= "\udfff"


class Work:
    """A function with its name, retries, timeout, executor, and what to do when it was cut off."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        on_doubt: OnDoubt = "retry",
        executor: Executor | None = None,
        key: str | None = None,
    ) -> None:
        if not callable(fn):
            raise UsageError(f"a step is a function, not {fn!r}")
        self.fn, self.retry, self.timeout, self.executor = fn, retry, timeout, executor
        self.on_doubt: OnDoubt = on_doubt
        self.key = key
        self.wraps_step = False
        """Whether its body journals the very step: what is known of the step as a whole is for that to find."""
        self.is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
        if name is not None:
            check_name("a step", name)
        own = getattr(fn, "__name__", None)
        self.name = name or (storable(own)[:200] if type(own) is str and own and own != "<lambda>" else None)
        self._check(f"step {name or fn!r}")

    def _check(self, what: str) -> None:
        if self.is_async and self.executor is not None:
            raise UsageError(f"{what}: an executor runs def functions, not async ones")
        if self.timeout is not None and not (is_duration(self.timeout) and self.timeout > 0):
            raise UsageError(
                f"{what}: timeout={self.timeout!r} must be a number of seconds, more than 0 and less than 3,000 years"
            )
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise UsageError(f"{what}: retry={self.retry!r} must be a RetryPolicy, e.g. RetryPolicy(attempts=3)")
        if self.executor is not None and not hasattr(self.executor, "submit"):
            raise UsageError(f"{what}: executor={self.executor!r} must be a concurrent.futures.Executor")
        if self.on_doubt not in get_args(OnDoubt):
            raise UsageError(f"{what}: on_doubt={self.on_doubt!r} must be 'retry', 'fail' or 'ask'")

    @property
    def called(self) -> str:
        """Its name, or that of what it is made of where it has none."""
        return self.name or getattr(getattr(self.fn, "func", None), "__name__", None) or type(self.fn).__name__

    @property
    def abroad(self) -> Any:
        """What a worker process finds by a module and a name: the step that took the place of the function there, or
        the function itself.
        """
        found: Any = sys.modules.get(getattr(self.fn, "__module__", None) or "")
        for name in getattr(self.fn, "__qualname__", "").split("."):
            found = getattr(found, name, None)
        return found if isinstance(found, Work) and found.fn is self.fn else self.fn

    @functools.cached_property
    def returns(self) -> Any:
        """The declared type of what it returns; None when there is none."""
        return declared_return(inspect.unwrap(self.fn))


def is_process_pool(executor: Executor | None) -> bool:
    """Whether what it does is done by other processes."""
    if executor is None:
        return False
    # Whoever has one has imported it. For all others it would be a sixth of the time that `import holdfast` takes.
    from concurrent.futures import ProcessPoolExecutor

    return isinstance(executor, ProcessPoolExecutor)


_returns: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def declared_return(fn: Any) -> Any:
    """The return annotation of a function; None when it has none or it cannot be made out."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type):
        return fn
    fn = getattr(fn, "__func__", fn)
    if not inspect.isroutine(fn):
        fn = type(fn).__call__
    try:
        if fn not in _returns:
            _returns[fn] = inspect.get_annotations(fn, eval_str=True).get("return")
        return _returns[fn]
    except Exception:  # an annotation is a text that may say anything
        return None


@functools.lru_cache(maxsize=1024)
def _work_of(fn: FunctionType) -> Work:
    return Work(fn)


def as_work(fn: Any) -> Work:
    """The function with its options: a step's own, or none."""
    if isinstance(fn, Work):
        return fn
    # What is made anew for each call would be kept with all that it holds, and found by nobody.
    if isinstance(fn, FunctionType) and "<locals>" not in fn.__qualname__:
        return _work_of(fn)
    return Work(fn)


def wear(thing: Any, fn: Any) -> None:
    """Give the thing the name, the documentation and the attributes of a function, as far as it has none of its own."""
    own = vars(thing).copy()
    functools.update_wrapper(thing, fn)
    for name in getattr(fn, "__dict__", ()):
        if hasattr(type(thing), name):
            del vars(thing)[name]
    vars(thing).update(own)
