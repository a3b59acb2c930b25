"""Trouble that lasts is told once, and once more when it is over: whoever reads the log is not flooded by an outage."""

from __future__ import annotations

import logging

log = logging.getLogger("holdfast")


class Trouble:
    """One thing that is tried again and again."""

    def __init__(self, what: str) -> None:
        """`what` is what cannot be done, as in "the mail could not be read"."""
        self._what = what
        self._told: str | None = None

    def met(self, error: Exception) -> None:
        """It failed again."""
        if self._told != str(error):
            self._told = str(error)
            log.warning("holdfast: %s: %s", self._what, error)

    def over(self) -> None:
        """It was done."""
        if self._told is not None:
            self._told = None
            log.warning("holdfast: it is over: %s", self._what)
