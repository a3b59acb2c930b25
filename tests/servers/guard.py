"""Sees to it that no server outlives the tests that use it, however these end.

A test that hangs ends its whole process without a word, and with it everything that would have cleaned up. So beside
each server a process waits until nobody uses it any more (`last_out.py`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

from servers import last_out

_watching: list[subprocess.Popen[bytes]] = []
"""Those that outlive what they were started for: others still use that."""


class Guard:
    """That this process uses the server in a folder."""

    def __init__(self, lock: int, watch: subprocess.Popen[bytes] | None = None) -> None:
        self._lock, self._watch = lock, watch

    @classmethod
    def begin(cls, folder: Path, pidfile: str, how: signal.Signals) -> Guard:
        """For a new server, which writes its number into that file and is ended by this signal."""
        lock = os.open(folder / last_out.LOCK, os.O_RDWR | os.O_CREAT)
        # A lock of the process, which those that it forks do not have.
        fcntl.lockf(lock, fcntl.LOCK_SH)
        watch = subprocess.Popen(
            [sys.executable, "-I", "-S", last_out.__file__, str(folder), pidfile, str(int(how))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to the test run as a whole does not end it
        )
        return cls(lock, watch)

    @classmethod
    def join(cls, folder: Path) -> Guard | None:
        """For the server of another process; None when that is gone."""
        try:
            lock = os.open(folder / last_out.LOCK, os.O_RDWR)
        except FileNotFoundError:
            return None
        fcntl.lockf(lock, fcntl.LOCK_SH)
        if not folder.exists():  # it was just being removed
            os.close(lock)
            return None
        return cls(lock)

    def is_last(self) -> bool:
        """Whether no other process uses it."""
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def end(self, *, gone: bool) -> None:
        """This process does not use it any more; `gone` when nobody can."""
        os.close(self._lock)
        if self._watch is not None and gone:
            self._watch.wait()
        elif self._watch is not None:
            _watching.append(self._watch)
