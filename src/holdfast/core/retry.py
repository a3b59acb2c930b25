"""How often a step is tried, and how long to wait in between."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from holdfast.core.durations import is_duration
from holdfast.errors import CallInDoubtError, StateError, TooManyStepsError, UsageError

_IN_VAIN = (StateError, UsageError, CallInDoubtError, TooManyStepsError)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`attempts` tries in all. The wait grows by `factor` from `first_delay` to `max_delay` seconds.

    `jitter` spreads each wait by that share to both sides, so that many runs do not come back at
    once. Errors of the classes in `never` are not retried.
    """

    attempts: int = 1
    first_delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.25
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError(f"RetryPolicy(attempts={self.attempts!r}): it must be a whole number of at least 1")
        if not isinstance(self.never, tuple) or not all(isinstance(c, type) for c in self.never):
            raise UsageError(f"RetryPolicy(never={self.never!r}): give a tuple of error classes, e.g. (ValueError,)")
        for name in ("first_delay", "max_delay"):
            value = getattr(self, name)
            if not is_duration(value):
                raise UsageError(f"RetryPolicy({name}={value!r}): seconds, not negative and less than 3,000 years")
        if type(self.factor) not in (int, float) or not 1 <= self.factor < inf:
            raise UsageError(f"RetryPolicy(factor={self.factor!r}): it must be a number of at least 1")
        if type(self.jitter) not in (int, float) or not 0 <= self.jitter <= 1:
            raise UsageError(f"RetryPolicy(jitter={self.jitter!r}): it must be a number between 0 and 1")

    def retries(self, error: BaseException, attempt: int) -> bool:
        """Whether another attempt follows when the `attempt`-th (from 1) ended in `error`."""
        if attempt >= self.attempts or isinstance(error, self.never):
            return False
        # What cannot be stored, was asked for wrongly, goes on for too long or is in doubt will be no better next
        # time, and SystemExit is no hiccup.
        return isinstance(error, Exception) and not isinstance(error, _IN_VAIN)

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Seconds to wait after the `attempt`-th (from 1) failure; `random` gives 0 to 1."""
        try:
            grown = min(self.first_delay * self.factor ** (attempt - 1), self.max_delay)
        except OverflowError:
            grown = self.max_delay if self.first_delay else 0.0
        return grown * (1 + self.jitter * (2 * random() - 1))
