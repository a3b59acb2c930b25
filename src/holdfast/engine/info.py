"""What a head says of a run, so that it can be shown without its program and its input told from others."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from holdfast.core.codec import Tree, canonical
from holdfast.model import Head


class Info(msgspec.Struct, omit_defaults=True):
    """What a head says of a run so that it can be shown without its program."""

    digest: str = ""
    nonce: str = ""
    total: int | None = None
    steps: tuple[str, ...] = ()


def digest_of(tree: Tree) -> str:
    """What tells two inputs apart."""
    return blake2b(canonical(tree), digest_size=16).hexdigest()


class Ended(msgspec.Struct):
    """How a run ended without a result, as its head holds it."""

    step: str | None
    error: str | None

    @classmethod
    def of(cls, head: Head) -> Ended:
        """Raises msgspec.DecodeError, or UnicodeDecodeError, when it is not what was once written."""
        return cls(None, None) if head.error is None else msgspec.json.decode(head.error, type=cls)
