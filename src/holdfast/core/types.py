"""The types of a program that may be stored and built: declared with a flow, or registered.

A store names a type by its `__qualname__`. Loading looks the name up here and nowhere else, so data
can never cause an import or reach anything that the program did not declare.
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
from holdfast.core.trail import Problem, type_name
from holdfast.errors import UsageError


class Registry:
    """The declared types, by name for loading and by type for storing."""

    def __init__(self) -> None:
        self.by_name: dict[str, Shape] = {}
        self.by_type: dict[type, Shape] = {}

    def add(self, annotation: Any) -> list[type]:
        """Declare every type in an annotation and in the fields of those, and give the new ones.

        `list[Report] | None` declares Report. What cannot be declared (builtins, Any, a type variable)
        is passed over, and so is a type that was only found in a field and whose name is taken.
        A class of the same module and name replaces the older one, because its module was loaded again;
        what is left of the older one can still be stored.

        Raises UsageError, and declares nothing, when the annotation itself names a type whose name is taken.
        """
        found: dict[str, Shape] = {}
        for cls, in_field in _classes_in(annotation):
            shape = None if cls in self.by_type else shape_of(cls)
            if shape is None:
                continue
            namesake = self._namesake(cls, self.by_name | found)
            if namesake is None:
                found[shape.name] = shape
            elif not in_field:
                raise UsageError(
                    f"{type_name(cls)} and {type_name(namesake)} have the same name, {shape.name!r}, by which "
                    f"stored data names its types. Rename one of them, or set __qualname__ in its class body."
                )
        self.by_name |= found
        self.by_type |= {shape.cls: shape for shape in found.values()}
        return [shape.cls for shape in found.values()]

    def refuse(self, value: Any, old: Any, depth: int) -> Any:
        """Raise Problem for a value of a type that is not declared; it says what can be done."""
        cls = type(value)
        name, base, namesake = cls.__name__, lookalikes.kind_of(cls), self._namesake(cls, self.by_name)
        problem = f"{type_name(cls)} cannot be stored"
        if hasattr(cls, "returned_by"):  # a move, where it is none
            problem = f"{name}(...) is not understood here: {cls.returned_by}"
        if base is not None:
            problem += f": it would lose its type. Convert it with {base.__name__}(...)"
        if shape_of(cls) is not None:
            problem += ": it is not declared." if base is None else ", or declare it."
            if namesake is not None:
                problem += f" Its name is taken by {type_name(namesake)}; rename one of them, then"
            problem += f" Pass state={name} to the flow, annotate the step's return type, or call rt.register({name})"
        raise Problem(problem)

    @staticmethod
    def _namesake(new: type, declared: dict[str, Shape]) -> type | None:
        """Another declared class of the same name, unless it is an older version of this one."""
        known = declared.get(new.__qualname__)
        return None if known is None or known.cls.__module__ == new.__module__ else known.cls


def shape_of(cls: type) -> Shape | None:
    """How instances of `cls` are taken apart and built; None when it is of no kind that can be."""
    if issubclass(cls, enum.Enum):
        return shapes.enum_shape(cls) if cls.__members__ else None
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


def _classes_in(annotation: Any) -> Iterator[tuple[type, bool]]:
    """Every class in an annotation, then those in the fields of these; with whether it was found in a field."""
    waiting: list[tuple[Any, bool]] = [(annotation, False)]
    seen: dict[int, Any] = {}  # By id, since not every annotation can be hashed; held, so that no id is used again.
    for part, in_field in waiting:
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, type) and typing.get_origin(part) is None:
            if part.__module__ != "builtins":
                yield part, in_field
                waiting += [(hint, True) for hint in _hints(part)]
        else:
            waiting += [(inner, in_field) for inner in _inside(part)]


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
