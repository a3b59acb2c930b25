"""An input made to fit the declared type of a state."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from holdfast.errors import UsageError

_ITSELF = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)


def fit_input(declared: Any, value: Any) -> Any:
    """The value as the declared type: as it is when it fits, built from a dict of fields otherwise.

    Raises UsageError that says which field does not fit.
    """
    if declared is None or declared is Any or (isinstance(declared, type) and isinstance(value, declared)):
        return value
    try:
        validate = getattr(declared, "model_validate", None)  # pydantic, without importing it
        if validate is not None:
            return validate({} if value is None else value)
        if value is None and _has_fields(declared):
            return declared()
        if isinstance(value, dict):
            _refuse_unknown(declared, value)
        return msgspec.convert(value, declared)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        name = getattr(declared, "__name__", declared)
        raise UsageError(f"the input does not fit the declared state {name}: {error}") from error


def fit_state(declared: Any, state: Any, before: Any) -> Any:
    """The state in the place of the one before: a step may have made that of another type than is declared."""
    return state if type(state) is type(before) else fit_input(declared, state)


def check_fields(value: Any) -> None:
    """Raises UsageError when a field of a value that was written down by hand is not of its declared type."""
    kind = type(value)
    validate = getattr(kind, "model_validate", None)
    if validate is None and not _has_fields(kind):
        return
    try:
        if validate is not None:
            validate(dict(vars(value)))
        else:
            msgspec.convert(msgspec.to_builtins(value, builtin_types=_ITSELF), kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"the state does not fit {kind.__name__}: {error}") from error
    except TypeError:
        return  # it has parts that only the program knows how to make


def _refuse_unknown(declared: Any, value: dict[Any, Any]) -> None:
    """Raises ValueError for a field that the class does not have: left out without a word, its default would be taken.

    Structs and models say themselves what is to become of such fields.
    """
    if dataclasses.is_dataclass(declared):
        names = [field.name for field in dataclasses.fields(declared)]
    else:
        names = [attribute.name for attribute in getattr(declared, "__attrs_attrs__", ())]
    unknown = [key for key in value if key not in names]
    if names and unknown:
        raise ValueError(f"it has no field {unknown[0]!r}, only {', '.join(names)}")


def _has_fields(declared: Any) -> bool:
    return (
        dataclasses.is_dataclass(declared)
        or hasattr(declared, "__struct_fields__")
        or hasattr(declared, "__attrs_attrs__")
    )
