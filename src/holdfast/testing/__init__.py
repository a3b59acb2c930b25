"""For tests: a clock that stands still, builders of records, and the suite that every store passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.testing.clock import ManualClock
from holdfast.testing.models import ScriptedModel, wants

if TYPE_CHECKING:
    from holdfast.testing.contract import StoreContract

__all__ = ["ManualClock", "ScriptedModel", "StoreContract", "wants"]


def __getattr__(name: str) -> Any:
    if name == "StoreContract":  # it needs pytest, which a program that only wants the clock may not have
        from holdfast.testing.contract import StoreContract

        return StoreContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
