"""How long something may take or be put off: what the program gives, in seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

LONGEST = 1e11
"""Seconds, some 3,000 years: the moment at which such a time ends is still a date."""


def seconds(duration: Any) -> Any:
    """A timedelta in seconds; anything else as it is."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def is_duration(value: object) -> bool:
    """Whether it is a number of seconds that somebody could wait: neither negative nor NaN nor without end."""
    return type(value) in (int, float) and 0 <= value < LONGEST  # type: ignore[operator]
