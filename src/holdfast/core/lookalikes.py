"""The shapes of types that are known by their looks: pydantic models, attrs classes, kinds of builtins.

Neither pydantic nor attrs is ever imported: a program that has such a type has imported it already.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import BuiltinFunctionType, MemberDescriptorType
from typing import Any

from holdfast.core.shapes import Attributes, Default, Parts, Shape, always, calling, part
from holdfast.core.trail import Problem, shown

_CACHED_HASH = "_attrs_cached_hash"
_HEAP_TYPE = 1 << 9  # Set for classes that a class statement made (and a few others).


def is_model(cls: type) -> bool:
    """Whether `cls` is a pydantic model."""
    return hasattr(cls, "__pydantic_validator__") and hasattr(cls, "__private_attributes__")


def is_attrs(cls: type) -> bool:
    """Whether `cls` is an attrs class."""
    return hasattr(cls, "__attrs_attrs__")


def is_bare(cls: type) -> bool:
    """Whether an instance is nothing but its attributes, so that an empty object can be filled with them."""
    return not any(type(base.__dict__.get("__new__")) is BuiltinFunctionType for base in cls.__mro__[:-1])


class Model(Attributes):
    """pydantic models, with extra and private attributes and the set of the fields that were given."""

    def __init__(self, cls: Any) -> None:
        fields = getattr(cls, "__pydantic_fields__", None)
        fields = cls.model_fields if fields is None else fields
        defaults = {name: _pydantic_default(info) for name, info in fields.items() if not info.is_required()}
        super().__init__(cls, fields, defaults)
        self._all_in_dict = True
        self._stray_slots = frozenset()
        self._private: dict[str, Any] = cls.__private_attributes__
        self._allows_extra = cls.model_config.get("extra") == "allow"

    def take(self, value: Any) -> Parts:
        parts = super().take(value)
        extra = getattr(value, "__pydantic_extra__", None)
        private = getattr(value, "__pydantic_private__", None)
        if extra:
            parts["extra"] = extra
        if private:
            parts["private"] = private
        given = value.__pydantic_fields_set__
        if given != {*parts["v"], *(extra or ())}:
            parts["set"] = sorted(given)
        return parts

    def build(self, parts: Parts) -> Any:
        stored = part(parts, "v")
        extra = part(parts, "extra") if "extra" in parts else {}
        private = part(parts, "private") if "private" in parts else {}
        for name in extra:
            if not self._allows_extra or type(name) is not str:
                raise Problem(
                    f"{self.name} was stored with an extra field {shown(name)}, which it no longer allows",
                    typed=f"{self.name} allows no extra field {shown(name)}",
                )
        for name in private:
            if name not in self._private:
                raise Problem(
                    f"{self.name} was stored with a private attribute {shown(name)} that it no longer has",
                    typed=f"{self.name} has no private attribute {shown(name)}",
                )
        given = set(parts["set"]) if "set" in parts else {*stored, *extra}
        fields = self.complete(stored)
        value: Any = object.__new__(self.cls)
        object.__setattr__(value, "__dict__", fields)
        object.__setattr__(value, "__pydantic_fields_set__", given)
        self._put(value, "__pydantic_extra__", extra if self._allows_extra else None)
        self._put(value, "__pydantic_private__", self._all_private(private, fields) if self._private else None)
        return value

    def _put(self, value: Any, name: str, item: Any) -> None:
        """Set what a model has a slot for. A root model has none, and would get a stray attribute."""
        if type(inspect.getattr_static(self.cls, name, None)) is MemberDescriptorType:
            object.__setattr__(value, name, item)

    def _all_private(self, stored: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """The stored private attributes, with those that are new since then filled from their defaults."""
        for name, attribute in self._private.items():
            if name not in stored:
                default = _pydantic_default(attribute)(fields)
                if type(default).__name__ != "PydanticUndefinedType":
                    stored[name] = default
        return stored


def _pydantic_default(info: Any) -> Default:
    if info.default_factory is None:
        return lambda fields: copy.deepcopy(info.default)
    if getattr(info, "default_factory_takes_validated_data", False):
        return lambda fields: info.default_factory(dict(fields))
    return calling(info.default_factory)


class Attrs(Attributes):
    """attrs classes. In a slotted one, every slot that is no field holds a cached value."""

    def __init__(self, cls: Any) -> None:
        attr: Any = sys.modules["attr"]
        defaults: dict[str, Default] = {}
        for field in cls.__attrs_attrs__:
            if isinstance(field.default, attr.Factory):
                make = field.default.factory
                defaults[field.name] = self._from_self(make) if field.default.takes_self else calling(make)
            elif field.default is not attr.NOTHING:
                defaults[field.name] = always(field.default)
        super().__init__(cls, (field.name for field in cls.__attrs_attrs__), defaults)
        self._stray_slots -= frozenset(
            name
            for base in cls.__mro__
            if "__attrs_attrs__" in base.__dict__
            for name, member in base.__dict__.items()
            if type(member) is MemberDescriptorType
        )
        # Such a class computes its hash once, and expects to find the place for it.
        names: tuple[str, ...] = getattr(getattr(cls.__hash__, "__code__", None), "co_names", ())
        self._caches_hash = _CACHED_HASH in names

    def filled(self, fields: dict[str, Any]) -> Any:
        value = super().filled(fields)
        if self._caches_hash:
            object.__setattr__(value, _CACHED_HASH, None)
        return value

    def _can_be_dropped(self, name: str) -> bool:
        return name == _CACHED_HASH or super()._can_be_dropped(name)

    def _from_self(self, make: Callable[[Any], Any]) -> Default:
        return lambda fields: make(self.filled(fields))


class Kind(Shape):
    """A registered subclass of a builtin: its builtin value under the name of the class."""

    kind = "kind"

    def __init__(self, cls: type, base: type) -> None:
        super().__init__(cls)
        self._base = dict if base is OrderedDict else base
        self._take, self._build = _KINDS[base]
        self._slots = tuple(
            name
            for base in cls.__mro__
            if base.__flags__ & _HEAP_TYPE
            for name, member in base.__dict__.items()
            if type(member) is MemberDescriptorType
        )

    def take(self, value: Any) -> Parts:
        self.refuse_attributes(getattr(value, "__dict__", ()))
        self.refuse_attributes(name for name in self._slots if hasattr(value, name))
        return {"v": self._take(value)}

    def build(self, parts: Parts) -> Any:
        if type(parts["v"]) is not self._base:
            raise Problem(f"is damaged: {self.name} is a kind of {self._base.__name__}, which it does not hold")
        return self._build(self.cls, parts["v"])


def _fill(base: Any, add: Callable[[Any, Any], None], cls: type, content: Any) -> Any:
    value = base.__new__(cls)
    add(value, content)
    return value


def _set_in_order(value: OrderedDict[Any, Any], content: dict[Any, Any]) -> None:
    for key, item in content.items():
        OrderedDict.__setitem__(value, key, item)


# The builtin's own methods are called, never those that a subclass may have put over them.
_KINDS: dict[type, tuple[Callable[[Any], Any], Callable[[type, Any], Any]]] = {
    int: (int.__pos__, int.__new__),
    float: (float.__pos__, float.__new__),
    str: (str.__str__, str.__new__),
    bytes: (lambda value: bytes.join(b"", (value, b"")), bytes.__new__),
    tuple: (lambda value: tuple(tuple.__iter__(value)), tuple.__new__),
    frozenset: (lambda value: frozenset(frozenset.__iter__(value)), frozenset.__new__),
    set: (lambda value: set(set.__iter__(value)), functools.partial(_fill, set, set.update)),
    list: (lambda value: list(list.__iter__(value)), functools.partial(_fill, list, list.extend)),
    OrderedDict: (
        lambda value: {key: dict.__getitem__(value, key) for key in OrderedDict.__iter__(value)},
        functools.partial(_fill, OrderedDict, _set_in_order),
    ),
    dict: (lambda value: dict(dict.items(value)), functools.partial(_fill, dict, dict.update)),
}


def kind_of(cls: type) -> type | None:
    """The builtin that `cls` is a kind of, if it is one."""
    return next((base for base in _KINDS if issubclass(cls, base) and base is not OrderedDict), None)


def kind_shape(cls: type) -> Shape | None:
    """The shape of a subclass of a builtin; None when it may hold more than its builtin value shows."""
    if cls is OrderedDict:
        return Kind(cls, OrderedDict)
    if not cls.__flags__ & _HEAP_TYPE or issubclass(cls, defaultdict):
        return None
    return next((Kind(cls, base) for base in _KINDS if issubclass(cls, base)), None)
