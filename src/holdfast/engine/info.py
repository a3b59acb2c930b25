"""What a head says of a run, so that it can be shown without its program and its input told from others."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from holdfast.core.codec import Tree, canonical


class Info(msgspec.Struct, omit_defaults=True):
    """What a head says of a run so that it can be shown without its program."""

    digest: str = ""
    nonce: str = ""
    total: int | None = None
    steps: tuple[str, ...] = ()


def digest_of(tree: Tree) -> str:
    """What tells two inputs apart."""
    return blake2b(canonical(tree), digest_size=16).hexdigest()
