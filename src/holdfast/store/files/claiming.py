"""Which runs a claim gets when some of those whose turn it is cannot be claimed by anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from holdfast.core.query import Mailed, claimable
from holdfast.model import Claim, Query


class PassedOverError(Exception):
    """Nobody can claim this run now: it is damaged, or being written."""


def claim_all(heads: Iterable[Mailed], query: Query, owner: str, claim: Callable[[str], Claim | None]) -> list[Claim]:
    """Claim what the query means of these, and others for those that are passed over.

    A damaged run is first in turn again and again: it must not take a place each time from those behind it. What
    others took meanwhile (`claim` gives None) is not replaced: after that, the heads are too old to choose from.
    """
    known = list(heads)
    claims: list[Claim] = []
    while chosen := claimable(known, query, owner):
        got: set[str] = set()
        passed_over = False
        for head in chosen:
            try:
                found = claim(head.id)
            except PassedOverError:
                passed_over = True
                continue
            except OSError:
                if claims:  # the caller owns these already and must know it
                    return claims
                raise
            if found is not None:
                claims.append(found)
                got.add(head.id)
        if not passed_over:
            break
        # What was claimed just now counts against the limits like all that is under way.
        known = [(replace(head, owned=True) if head.id in got else head, inbox) for head, inbox in known]
        query = replace(query, but=(*query.but, *(head.id for head in chosen)), limit=query.limit - len(got))
    return claims
