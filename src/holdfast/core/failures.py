"""A failure as JSON, and the exception that it was again.

    tree = failure_tree(error, codec, classes)     what a log keeps of an exception
    error = failure_of(tree, codec, classes)       the exception to raise again

Both take whatever they are given and raise nothing. A tree says in "kind" where its class is looked up:

    builtin       Python's own exceptions, in a table that is made when this module is loaded
    holdfast      those of holdfast.errors
    registered    what the program had registered under that name when the call failed
    other         anything else; it comes back as itself once that very class, of that module, is registered

So a program's own TimeoutError is never taken for Python's, nor for a namesake of another library. What
has no class here, or cannot be built from what was stored, comes back as CallFailedError.

An exception is built by the builtin class it derives from and then gets its attributes: nothing that the
program wrote (`__new__`, `__init__`, `__setattr__`) runs with stored data, and nothing is imported.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from types import MappingProxyType, MemberDescriptorType
from typing import Any

from holdfast import errors
from holdfast.core.codec import Codec, Tree
from holdfast.core.ids import storable
from holdfast.errors import CallFailedError

__all__ = ["describe", "failure_of", "failure_tree"]

Classes = Mapping[str, type[BaseException]]

_MAX_TEXT = 4000
_FOUND = "found in the log of the run, which keeps how this call failed; the call was not made again"
_UNREGISTERED: Classes = MappingProxyType({})

_BUILTIN: dict[str, type[BaseException]] = {
    cls.__name__: cls
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, BaseException) and cls.__module__ == "builtins"
}
_OWN: dict[str, type[BaseException]] = {
    cls.__name__: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, Exception) and cls.__module__ == errors.__name__
}
_PYTHON: frozenset[type] = frozenset(_BUILTIN.values())
# What builtin exceptions hold beside `args` and `__dict__`, as far as any value in it does no harm.
_MEMBERS: dict[type, tuple[str, ...]] = {
    OSError: ("errno", "strerror", "filename", "filename2"),
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}
_POSITIONED = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)
# Read and written past whatever a class of the program, or its metaclass, puts before them.
_NAME: Any = type.__dict__["__name__"]
_QUALNAME: Any = type.__dict__["__qualname__"]
_ARGS: Any = BaseException.__dict__["args"]
_DICT: Any = BaseException.__dict__["__dict__"]


def describe(error: BaseException) -> str:
    """What went wrong, "ValueError: text", as text that can be stored whatever the error says of itself."""
    # A subclass of str may do anything when it is formatted: take its characters.
    name = str.__str__(_NAME.__get__(type(error)))
    try:
        text = str.__str__(str(error))
    except BaseException:  # The error is being told of already: nothing that its own text raises is worth more.
        text = "(its text cannot be shown)"
    return storable(f"{name}: {text}"[:_MAX_TEXT] if text else name)[:_MAX_TEXT]


def failure_tree(error: BaseException, codec: Codec, classes: Classes = _UNREGISTERED) -> dict[str, Tree]:
    """What a log keeps of an exception: "kind", "type", "text" and, as far as they can be stored exactly,
    "args" and "attrs"; "lost" names the attributes that cannot.
    """
    try:
        return _taken_apart(error, codec, classes)
    except BaseException:  # As above. What is left are classes whose metaclass misbehaves.
        return {"kind": "other", "type": "Exception", "text": "an exception of which nothing can be shown"}


def failure_of(tree: Any, codec: Codec, classes: Classes, call: str = "") -> Exception:
    """The exception to raise again for a stored failure of `call`; a note on it says where it comes from."""
    parts: dict[str, Any] = tree if type(tree) is dict else {}
    cls = _class_of(parts, classes)
    try:
        error = None if cls is None else _built(cls, parts, codec)
    except Exception:  # Damaged, or the class has changed since: its text is still there.
        error = None
    note = _FOUND
    if error is None:
        name, text = (parts.get(key) if type(parts.get(key)) is str else None for key in ("type", "text"))
        error = CallFailedError(call, name or "Exception", text or name or "an unknown error")
        if cls is None and parts.get("kind") == "other" and "args" in parts:
            note += f". rt.register({name}) brings it back as itself"
    elif type(parts.get("lost")) is list:
        note += ". What could not be stored of it: " + ", ".join(str(lost)[:80] for lost in parts["lost"][:8])
    _DICT.__get__(error)["__notes__"] = [note]
    return error


def _taken_apart(error: BaseException, codec: Codec, classes: Classes) -> dict[str, Tree]:
    cls = type(error)
    tree: dict[str, Tree] = {"kind": _kind(cls, classes), "type": _stored_name(cls), "text": describe(error)}
    if tree["kind"] == "other":
        tree["module"] = _module(cls)
    args = _encoded(list(_ARGS.__get__(error)), codec)
    if not _can_return(cls) or args is None:
        return tree
    tree["args"] = args
    held = _attributes(error)
    attrs = _encoded(held, codec)
    if attrs is None:
        kept = {name: value for name, value in held.items() if _encoded({name: value}, codec) is not None}
        attrs = _encoded(kept, codec)
        tree["lost"] = [storable(str(name)) for name in held if attrs is None or name not in kept]
    if attrs:
        tree["attrs"] = attrs
    return tree


def _kind(cls: type[BaseException], classes: Classes) -> str:
    for kind, known in (("builtin", _BUILTIN), ("holdfast", _OWN), ("registered", classes)):
        if known.get(_stored_name(cls)) is cls:
            return kind
    return "other"


def _stored_name(cls: type) -> str:
    return storable(str.__str__(_QUALNAME.__get__(cls)))


def _can_return(cls: type) -> bool:
    """Whether failures of this class are ever raised again: no groups, nothing that stops a program."""
    return issubclass(cls, Exception) and not issubclass(cls, BaseExceptionGroup)


def _module(cls: type) -> str:
    module: object = cls.__module__
    return storable(module) if isinstance(module, str) else ""


def _encoded(value: list[Any] | dict[Any, Any], codec: Codec) -> Tree:
    """The tree of a value; None when it cannot be stored."""
    try:
        return codec.encode(value, path="error")
    except Exception:
        return None


def _attributes(error: BaseException) -> dict[Any, Any]:
    held = {name: value for name, value in _DICT.__get__(error).items() if name != "__notes__"}
    for name, member in _members(type(error)).items():
        try:
            value = member.__get__(error)
        except AttributeError:  # A slot that was never filled.
            continue
        if value is not None:
            held[name] = value
    return held


def _members(cls: type) -> dict[str, MemberDescriptorType]:
    """Where a class keeps attributes outside `__dict__`: its slots, and some of its builtin base."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        for name, member in vars(base).items()
        if type(member) is MemberDescriptorType and (base not in _PYTHON or name in _MEMBERS.get(base, ()))
    }


def _class_of(parts: dict[str, Any], classes: Classes) -> type[BaseException] | None:
    """The class of a stored failure, if it is one that can be raised again."""
    kind, name = parts.get("kind"), parts.get("type")
    if type(name) is not str:
        return None
    cls = None
    if kind == "builtin":
        cls = _BUILTIN.get(name)
    elif kind == "holdfast":
        cls = _OWN.get(name)
    elif kind in ("registered", "other"):
        cls = classes.get(name)
        if kind == "other" and cls is not None and _module(cls) != parts.get("module"):
            cls = None
    return cls if cls is not None and _can_return(cls) else None


def _built(cls: type[BaseException], parts: dict[str, Any], codec: Codec) -> Exception:
    """An exception of that class from what was stored. Raises for whatever does not fit."""
    args = codec.decode(parts["args"])
    attrs = codec.decode(parts.get("attrs", {}))
    if type(args) is not list or type(attrs) is not dict:
        raise ValueError("the tree is damaged")
    if issubclass(cls, _POSITIONED):
        _check_position(args)
    base: Any = cls
    while base not in _PYTHON:
        base = base.__base__
    error: Exception = base.__new__(cls, *args)
    base.__init__(error, *args)
    members, held = _members(cls), _DICT.__get__(error)
    for name, value in attrs.items():
        if name in members:
            members[name].__set__(error, value)
        elif type(name) is str:
            held[name] = value
    return error


def _check_position(args: list[Any]) -> None:
    """Python reads the text at the position that these errors name, unchecked, when they are shown."""
    *_, text, start, end, _ = args
    if not 0 <= start <= end <= len(text):
        raise ValueError("the position lies outside the text")
