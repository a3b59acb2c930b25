"""Columns as arrays: each value is written as it would be by itself, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.postgres.arrays import floats, ints, texts

_HEAD = 20
TEXTS = st.none() | st.sampled_from(["", "a", "é", b"", b"a"])
INTS = st.none() | st.sampled_from([0, 1, -1, 2**62])
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 1.5, float("inf")])


@pytest.mark.parametrize(("array", "values"), [(texts, TEXTS), (ints, INTS), (floats, FLOATS)])
@given(data=st.data())
def test_each_value_is_written_as_it_would_be_by_itself(
    array: Callable[[Any], bytes], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    column = tuple(data.draw(st.lists(values, min_size=1, max_size=4)))
    assert array(column)[_HEAD:] == b"".join(array((value,))[_HEAD:] for value in column)
