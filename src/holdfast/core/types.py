"""The types of a program that may be stored and built: declared with a flow, or registered.

A store names a type by its `__qualname__`. Loading looks the name up here and nowhere else, so data
can never cause an import or name anything that the program did not declare.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core import lookalikes, shapes
from holdfast.core.shapes import Shape
from holdfast.core.trail import type_name
from holdfast.errors import UsageError


class Registry:
    """The declared types, by name for loading and by type for storing."""

    def __init__(self) -> None:
        self.by_name: dict[str, Shape] = {}
        self.by_type: dict[type, Shape] = {}

    def add(self, annotation: Any) -> list[type]:
        """Declare every type in an annotation and in the fields of those, and give the new ones.

        `list[Report] | None` declares Report. What cannot be declared (builtins, Any, a type variable)
        is passed over. A class of the same module and name replaces the older one, whose instances can
        still be stored: its module was loaded again.

        Raises UsageError when two types of the program have the same name.
        """
        added = []
        for cls in _classes_in(annotation):
            if cls not in self.by_type and (shape := shape_of(cls)) is not None:
                self._refuse_double(shape)
                self.by_name[shape.name] = self.by_type[cls] = shape
                added.append(cls)
        return added

    def _refuse_double(self, shape: Shape) -> None:
        known = self.by_name.get(shape.name)
        if known is not None and known.cls.__module__ != shape.cls.__module__:
            raise UsageError(
                f"{type_name(known.cls)} and {type_name(shape.cls)} have the same name {shape.name!r}, by which stored "
                f"data names its types. Rename one of them, or give it another __qualname__ in its class body."
            )


def shape_of(cls: type) -> Shape | None:
    """How instances of `cls` are taken apart and built; None when it is of no kind that can be."""
    if issubclass(cls, enum.Enum):
        return shapes.enum_shape(cls)
    if issubclass(cls, msgspec.Struct):
        return shapes.Struct(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_field_defaults"):
        return shapes.NamedTuple(cls)
    if lookalikes.kind_of(cls) is not None:
        return None if has_fields(cls) or typing.is_typeddict(cls) else lookalikes.kind_shape(cls)
    if not lookalikes.is_bare(cls):
        return None
    if dataclasses.is_dataclass(cls):
        return shapes.dataclass_shape(cls)
    if lookalikes.is_attrs(cls):
        return lookalikes.Attrs(cls)
    return lookalikes.Model(cls) if lookalikes.is_model(cls) else None


def has_fields(cls: type) -> bool:
    """Whether `cls` has fields, other than a Struct's, an enum's or a named tuple's."""
    return dataclasses.is_dataclass(cls) or lookalikes.is_attrs(cls) or lookalikes.is_model(cls)


def _classes_in(annotation: Any) -> Iterator[type]:
    """Every class in an annotation and in the annotations of its fields, each once."""
    waiting, seen = [annotation], list[Any]()
    while waiting:
        part = waiting.pop()
        if any(part is old for old in seen):
            continue
        seen.append(part)
        if isinstance(part, type) and typing.get_origin(part) is None:
            if part.__module__ != "builtins":
                yield part
                waiting += _hints(part)
        else:
            waiting += _inside(part)


def _inside(annotation: Any) -> list[Any]:
    """The annotations of which another one is made."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(annotation)]
    if origin is typing.Annotated:
        return [typing.get_args(annotation)[0]]
    if isinstance(annotation, (list, tuple)):  # The arguments of a Callable.
        return list(annotation)
    # NewType has a supertype, `type X = ...` has a value.
    named = [getattr(annotation, name, None) for name in ("__supertype__", "__value__")]
    return [*named, origin, *typing.get_args(annotation)]


def _hints(cls: type) -> list[Any]:
    """The annotations of a class that can be resolved; the others are passed over."""
    if not (has_fields(cls) or issubclass(cls, (msgspec.Struct, tuple)) or typing.is_typeddict(cls)):
        return []
    try:
        return list(typing.get_type_hints(cls, include_extras=True).values())
    except Exception:  # A name that only a type checker knows: take the others one by one.
        return [hint for base in cls.__mro__ for hint in _hints_one_by_one(base)]


def _hints_one_by_one(cls: type) -> Iterator[Any]:
    names = vars(sys.modules.get(cls.__module__, typing))
    for name, hint in inspect.get_annotations(cls).items():
        holder = type(cls.__name__, (), {"__annotations__": {name: hint}, "__module__": cls.__module__})
        try:
            yield typing.get_type_hints(holder, globalns=names, localns=dict(vars(cls)), include_extras=True)[name]
        except Exception:
            continue
