"""The suite that every store passes; the only place where the behaviour of stores is tested.

A store is tested by a small subclass. It says which capabilities the store must have, and how to make
a store object: each call of what `make_store` gives makes a new, unopened one on the same database.

    class TestMyStore(StoreContract):
        capabilities = frozenset({"durable"})

        @pytest.fixture
        def make_store(self, tmp_path: Path, clock: ManualClock) -> Callable[[], Store]:
            return lambda: MyStore(tmp_path / "runs", clock=clock)

Needs pytest and pytest-asyncio. Tests of what a store does not declare are skipped, and a test
makes sure that it declares exactly `capabilities`, so that no skip passes unnoticed.
"""

from __future__ import annotations

import pytest

_PARTS = ("base", "claims", "commits", "life", "logs", "mail", "queries", "sharing", "turns")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from holdfast.testing.contract.claims import ClaimContract  # noqa: E402
from holdfast.testing.contract.commits import CommitContract  # noqa: E402
from holdfast.testing.contract.life import LifeContract  # noqa: E402
from holdfast.testing.contract.logs import LogContract  # noqa: E402
from holdfast.testing.contract.mail import MailContract  # noqa: E402
from holdfast.testing.contract.queries import QueryContract  # noqa: E402
from holdfast.testing.contract.sharing import SharingContract  # noqa: E402
from holdfast.testing.contract.turns import TurnContract  # noqa: E402

__all__ = ["StoreContract"]


class StoreContract(
    CommitContract,
    LogContract,
    ClaimContract,
    TurnContract,
    MailContract,
    QueryContract,
    LifeContract,
    SharingContract,
):
    """Every sentence of the Store contract as a test."""
