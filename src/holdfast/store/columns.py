"""What the tables of the SQL stores hold of a head, beside what its last entry says."""

from __future__ import annotations

from operator import attrgetter

STORED = (
    "id",
    "flow",
    "status",
    "owner",
    "fence",
    "attempt",
    "base",
    "floor",
    "wake_at",
    "expires_at",
    "parent",
    "queue",
    "priority",
    "key",
    "metadata",
    "info",
    "error",
    "waiting_for",
    "created_at",
    "started_at",
    "ended_at",
)
stored_of = attrgetter(*STORED)
NUMBERS = frozenset(
    {"fence", "attempt", "base", "floor", "wake_at", "expires_at", "priority", "created_at", "started_at", "ended_at"}
)
"""Those of them that are numbers; all others are texts."""
