"""Run ids and references: what is allowed, checked before anything is read or written."""

from __future__ import annotations

import re
import secrets

from holdfast.errors import InvalidIdError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SEQ = re.compile(r"[1-9][0-9]{0,17}")


def check_id(value: object) -> str:
    """The run id itself. Raises InvalidIdError for anything outside the allowed form."""
    if type(value) is not str or not _ID.fullmatch(value):
        raise InvalidIdError(value)
    return value


def parse_ref(value: object) -> tuple[str, int | None]:
    """The run and the seq of a reference: RUN (seq None, the latest) or RUN@SEQ."""
    if type(value) is not str:
        raise InvalidIdError(value, "reference")
    run, at, seq = value.partition("@")
    if not _ID.fullmatch(run) or (at and not _SEQ.fullmatch(seq)):
        raise InvalidIdError(value, "reference")
    return run, int(seq) if at else None


def storable(text: str) -> str:
    """The text with what UTF-8 cannot hold written as escapes: for texts that only people read."""
    return text.encode("utf-8", "backslashreplace").decode()


def new_id(flow: str) -> str:
    """An id that nobody else has, which begins with the flow's name as far as an id allows it."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", flow).lstrip("._-")[:40] or "run"
    return f"{slug}-{secrets.token_hex(6)}"


def new_owner() -> str:
    """The id of an owner: 15 hex digits that no other runtime ever had."""
    return f"{secrets.randbits(60):015x}"
