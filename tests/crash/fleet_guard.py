"""What a worker under torture must never do: run what data tells it to, or touch a file that is not its own.

Its folder, its home and its place for temporary files are one empty folder, which stays empty. Whatever it opens to
write, removes, starts or loads is seen by an audit hook of the interpreter, and noted down if it should not be.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAP = "holdfast_trapped"
"""A name that only hostile data has: of a module to import, and of a file to make."""

HOSTILE: dict[str, Any] = {
    "constructor": {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": f"touch {TRAP}"}},
    "object": {"$": "object", "type": f"{TRAP}:Trap", "v": {"$": "tuple", "v": [1]}},
    "pairs": {"$": "dict", "v": [["a", 1], ["a", 2]]},
    "reduce": {"__reduce__": ["os.system", [f"touch {TRAP}"]], "__class__": f"{TRAP}.Trap", "__setstate__": TRAP},
    "jsonpickle": {"py/object": f"{TRAP}.Trap", "py/reduce": [{"py/function": "os.system"}, {"py/tuple": [TRAP]}]},
    "yaml": f"!!python/object/apply:os.system ['touch {TRAP}']",
    "template": f"{{{{ cycler.__init__.__globals__.os.system('touch {TRAP}') }}}}",
    "pickle": f"cos\nsystem\n(S'touch {TRAP}'\ntR.".encode(),
    "path": f"../../{TRAP}",
}

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FOREIGN = frozenset(
    {
        *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
        *("os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.copyfile", "tempfile.mkstemp"),
        *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"),
    }
)
_RUNNING = frozenset({"compile", "exec"})
OWN = ("ledger", "acknowledged", "said")
"""The files that workers write to, beside the store."""


def guard(place: Path) -> None:
    """Go to the empty folder, and note down from now on what must not be."""
    home = str(place / "home")
    os.chdir(home)
    os.environ.update(HOME=home, TMPDIR=home)
    sys.dont_write_bytecode = True  # what it loads late would be written beside its source
    own = {str(place / name) for name in OWN} | {os.devnull}
    notes = os.open(place / "touched", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            foreign = bool((flags or 0) & _WRITING) and not isinstance(path, int) and os.fspath(path) not in own
        else:
            foreign = event in _FOREIGN or (event in _RUNNING and TRAP in repr(arguments[:2]))
        if foreign:
            note(f"{event} {arguments!r}")

    def note(what: str) -> None:
        os.write(notes, f"{what}\n".encode(errors="backslashreplace"))

    sys.addaudithook(see)
    sys.meta_path.insert(0, _Finder(note))


class _Finder:
    """Asked first for every module, and has none; not every way to import one has an event of its own."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if TRAP in name:
            self._note(f"import {name}")


def check_untouched(place: Path) -> None:
    """Raises AssertionError when a worker has done what it must not, or left anything behind."""
    noted = (place / "touched").read_text().splitlines()
    assert not noted, f"a worker did what it must not: {noted[:5]}"
    assert not (left := os.listdir(place / "home")), f"workers left {left} in their folder"
    known = {*OWN, "touched", "home"}
    assert set(os.listdir(place)) <= known, f"workers left {set(os.listdir(place)) - known} beside the ledger"


def check_baggage(run: str, state: Any) -> None:
    """What was given to the run came through all of it as it was, dicts as dicts."""
    if isinstance(state, dict) and "baggage" in state:
        assert repr(state["baggage"]) == repr(HOSTILE), f"run {run}: hostile data came back as {state['baggage']!r}"
