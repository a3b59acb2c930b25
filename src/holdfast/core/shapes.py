"""How instances of a user's types are taken apart and built again.

A `Shape` knows one type. `take` gives the parts of an instance as plain containers, `build` makes an
instance from such parts again. Building never runs `__init__` or `__post_init__`: the object comes
back as it was, not as its constructor would make it today.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from types import MemberDescriptorType
from typing import Any, ClassVar

import msgspec

from holdfast.core.trail import Problem, shown, type_name

Parts = dict[str, Any]
Default = Callable[[dict[str, Any]], Any]
"""Gives the value of a field that the stored data does not have, from the fields that it has."""

_CLASS_OF: Any = object.__dict__["__class__"]
# Left on an instance by typing.Generic; says nothing that its class does not say.
_NOT_DATA = frozenset({"__orig_class__", "__msgspec_cached_hash__"})


class Shape(ABC):
    """One type of the user's program, by the name under which a store knows it."""

    kind: ClassVar[str]

    def __init__(self, cls: type) -> None:
        self.cls, self.name = cls, cls.__qualname__

    @abstractmethod
    def take(self, value: Any) -> Parts:
        """The parts of an instance. They are only read, so they may be the instance's own."""

    @abstractmethod
    def build(self, parts: Parts) -> Any:
        """A new instance from its parts. Raises Problem when they no longer fit the type."""

    def refuse_attributes(self, held: Iterable[str], known: Iterable[str] = ()) -> None:
        """Raise Problem for an attribute that is not in `known` and would be lost."""
        for name in held:
            if name not in known and not self._can_be_dropped(name):
                raise Problem(
                    f"has an attribute {name!r}, which is no field of {type_name(self.cls)} and would be lost. "
                    f"Make it a field, or remove it before the step ends"
                )

    def _can_be_dropped(self, name: str) -> bool:
        cached = inspect.getattr_static(self.cls, name, None)
        return name in _NOT_DATA or isinstance(cached, functools.cached_property)


class Attributes(Shape):
    """Everything whose instances are fields in attributes: dataclasses, and the basis of the others."""

    kind = "object"

    def __init__(self, cls: type, names: Iterable[str], defaults: dict[str, Default]) -> None:
        super().__init__(cls)
        self.names, self._defaults = tuple(names), defaults
        self.known = frozenset(self.names)
        slots = frozenset(_slots(cls))
        self._stray_slots = slots - self.known
        self._all_in_dict = not slots

    def take(self, value: Any) -> Parts:
        held: dict[str, Any] = getattr(value, "__dict__", {})
        if self._all_in_dict and held.keys() == self.known:
            return {"v": held}
        self.refuse_attributes(held, self.known)
        self.refuse_attributes(name for name in self._stray_slots if hasattr(value, name))
        fields = {}
        for name in self.names:
            try:
                fields[name] = held[name] if name in held else getattr(value, name)
            except AttributeError:
                raise Problem(f"its field {name!r} has no value, so this {self.name} cannot be stored") from None
        return {"v": fields}

    def build(self, parts: Parts) -> Any:
        return self.filled(self.complete(part(parts, "v")))

    def filled(self, fields: dict[str, Any]) -> Any:
        """An instance with exactly these fields."""
        value: Any = object.__new__(self.cls)
        if self._all_in_dict:
            value.__dict__.update(fields)
        else:
            for name, item in fields.items():
                object.__setattr__(value, name, item)
        return value

    def complete(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The stored fields, with those that are new since then filled from their defaults."""
        if fields.keys() == self.known:
            return fields
        for name in fields:
            if name not in self.known:
                raise Problem(
                    f"{self.name} was stored with a field {shown(name)} that it no longer has. "
                    f"Put the field back, or fork the run with a state that fits",
                    typed=f"{self.name} has no field {shown(name)} (it has: {', '.join(self.names)})",
                )
        for name in self.names:
            if name not in fields:
                if name not in self._defaults:
                    raise Problem(
                        f"{self.name} was stored without its field {name!r}. "
                        f"Give the field a default, or fork the run with a state that fits",
                        typed=f"{self.name} has a field {name!r} without a default, which is not given",
                    )
                fields[name] = self._defaults[name](fields)
        return fields


class Struct(Attributes):
    """msgspec's Struct, of which there are no bare objects to fill."""

    def __init__(self, cls: type[msgspec.Struct]) -> None:
        fields = msgspec.structs.fields(cls)
        defaults: dict[str, Default] = {}
        for field in fields:
            if field.default is not msgspec.NODEFAULT:
                defaults[field.name] = always(field.default)
            elif field.default_factory is not msgspec.NODEFAULT:
                defaults[field.name] = calling(field.default_factory)
        super().__init__(cls, (field.name for field in fields), defaults)

    def filled(self, fields: dict[str, Any]) -> Any:
        if not hasattr(self.cls, "__post_init__"):
            return self.cls(**fields)
        value = self._silent(**fields)
        _CLASS_OF.__set__(value, self.cls)
        return value

    @functools.cached_property
    def _silent(self) -> type:
        """A twin of the class whose `__post_init__` does nothing, because no other way leaves it out."""
        return type(self.cls)(self.cls.__name__, (self.cls,), {"__post_init__": lambda self: None})


class NamedTuple(Attributes):
    """Named tuples, by the names of their fields, so that fields with defaults can be added."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, cls._fields, {name: always(item) for name, item in cls._field_defaults.items()})

    def take(self, value: Any) -> Parts:
        self.refuse_attributes(getattr(value, "__dict__", ()))
        items = tuple(tuple.__iter__(value))
        if len(items) != len(self.names):
            raise Problem(f"has {len(items)} items, but {type_name(self.cls)} has {len(self.names)} fields")
        return {"v": dict(zip(self.names, items, strict=True))}

    def filled(self, fields: dict[str, Any]) -> Any:
        return tuple.__new__(self.cls, [fields[name] for name in self.names])


class Enum(Shape):
    """Enums, by the name of the member."""

    kind = "enum"

    def take(self, value: Any) -> Parts:
        if self._members().get(value._name_) is not value:
            raise Problem(f"is no named member of {type_name(self.cls)} and cannot be stored")
        return {"v": value._name_}

    def build(self, parts: Parts) -> Any:
        name = parts["v"]
        if type(name) is not str or name not in self._members():
            raise Problem(
                f"{self.name} no longer has the member {shown(name)}. "
                f"Put it back, or fork the run with a state that fits",
                typed=f"{self.name} has no member {shown(name)} (it has: {', '.join(self._members())})",
            )
        return self._members()[name]

    def _members(self) -> Any:
        return self.cls.__members__  # type: ignore[attr-defined]


class Flag(Shape):
    """Flags, by value: a combination of them need not have a name."""

    kind = "flag"

    def take(self, value: Any) -> Parts:
        return {"v": value._value_}

    def build(self, parts: Parts) -> Any:
        bits = parts["v"]
        try:
            value = self.cls(bits) if type(bits) is int else None
        except ValueError:
            value = None
        if type(value) is not self.cls:
            raise Problem(
                f"{self.name} no longer has all the flags in {shown(bits)}. Put them back",
                typed=f"{self.name} does not have all the flags in {shown(bits)}",
            )
        return value


def dataclass_shape(cls: Any) -> Shape:
    """The shape of a dataclass."""
    defaults: dict[str, Default] = {}
    fields = dataclasses.fields(cls)
    for field in fields:
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = always(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = calling(field.default_factory)
    return Attributes(cls, (field.name for field in fields), defaults)


def enum_shape(cls: type[enum.Enum]) -> Shape:
    """The shape of an enum or a flag."""
    return Flag(cls) if issubclass(cls, enum.Flag) else Enum(cls)


def always(value: Any) -> Default:
    """A default that is the same value every time."""
    return lambda fields: value


def calling(factory: Callable[[], Any]) -> Default:
    """A default that a factory makes anew."""
    return lambda fields: factory()


def part(parts: Parts, key: str) -> dict[str, Any]:
    """One part of a stored object that is a dict; whether its keys are names is for the caller to see."""
    found = parts[key]
    if type(found) is not dict:
        raise Problem(f"is damaged: its {key!r} does not hold names and values")
    return found


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        for name, member in base.__dict__.items():
            if type(member) is MemberDescriptorType and name not in _NOT_DATA:
                yield name
