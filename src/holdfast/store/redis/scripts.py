"""The scripts that do all the work in the server, each of them wholly or not at all."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

VERSION = 1  # of what the scripts write


class Script(NamedTuple):
    """A script and the name by which a server that has seen it knows it."""

    text: str
    digest: str


def _script(*names: str) -> Script:
    folder = files("holdfast.store.redis") / "lua"
    text = "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names)
    text = f"local VERSION = '{VERSION}'\n{text}"
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


OPEN = _script("prelude", "open")
COMMIT = _script("prelude", "indexes", "commit")
CLAIM = _script("prelude", "indexes", "limits", "claim")
POST = _script("prelude", "indexes", "post")
DELETE = _script("prelude", "indexes", "delete")
HEADS = _script("prelude", "heads")
PAGES = _script("prelude", "pages")
ENTRIES = _script("prelude", "entries")
BEAT = _script("prelude", "beat")
RETIRE = _script("prelude", "retire")
OWNERS = _script("prelude", "owners")
CHECK = _script("prelude", "indexes", "check")
