"""Named points where tests make the process die or an error appear; nothing happens there otherwise."""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def fault(point: str) -> None:
    """Tell the installed hook, if a test installed one, that execution has come to `point`."""
    if _hook is not None:
        _hook(point)


def install(hook: Callable[[str], None] | None) -> None:
    """Send every fault point to `hook`, or to nobody again with None."""
    global _hook
    _hook = hook
