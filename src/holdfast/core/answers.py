"""What an answer to a question must look like.

    tree = schema_tree(bool)                 the asking side: a type as JSON Schema, for the log
    plain = fit_answer(tree, answer)         the answering side, which need not have the program
    value = answer_value(bool, plain)        the asking side again: the answer as its code wants it

An answer that `fit_answer` lets through is one that `answer_value` can turn into the declared type, as far
as JSON Schema can say it; what only the type's own code can say is found by `answer_value`.

Schemas are checked and applied by jsonschema, which is imported when it is needed: it takes longer than all
of Holdfast. It is never given a way to fetch anything: a reference must lead to a place in the schema.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import json
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.lookalikes import is_model
from holdfast.core.trail import at_index, at_key, type_name
from holdfast.errors import AnswerError, UsageError

__all__ = ["answer_value", "fit_answer", "schema_tree"]

_ACCEPTED = (
    "schema takes a type or annotation (bool, int, str, float, Literal[...], list[str], an Enum of strings or ints, a "
    "dataclass, msgspec.Struct, attrs or pydantic model, or `... | None`), or a JSON Schema as a dict"
)
_SHOWN = 300
# Held to exactly what msgspec turns into these types, for whom schemas of types write these formats.
_FORMATS: dict[str, type] = {
    "date-time": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
}
_FORMATS_OF_JSONSCHEMA = ("email", "ipv4", "ipv6", "regex")


def schema_tree(schema: Any) -> dict[str, Any] | None:
    """A type, an annotation or a JSON Schema as JSON Schema in plain JSON; None for None.

    Raises UsageError that says what is accepted, and for a JSON Schema that could never be applied.
    """
    if schema is None:
        return None
    try:
        tree = schema if isinstance(schema, dict) else _schema_of_type(schema)
        tree = json.loads(json.dumps(tree, allow_nan=False))
        if isinstance(schema, dict):
            _check_references(tree)
            # Once, so that a schema that only leads back to itself is found by those who wrote it.
            _validator(tree).is_valid(None)
    except Exception as error:
        raise UsageError(f"{_shown(schema)} cannot be a schema: {_reason(error)}. {_ACCEPTED}.") from error
    checked: dict[str, Any] = tree
    return checked


def fit_answer(schema: dict[str, Any] | None, value: Any) -> Any:
    """The answer as plain JSON data that fits a stored schema; without a schema, the answer unchanged.

    Raises AnswerError, which names the place in the answer and shows the schema. A stored schema that cannot
    be applied, whatever it holds, is an AnswerError too, and nothing is ever fetched for it.
    """
    if schema is None:
        return value
    shown = _brief(schema)
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_dump)
        plain = json.loads(json.dumps(plain, allow_nan=False, ensure_ascii=False).encode())
    except Exception as error:
        raise AnswerError("answer", f"is not JSON data: {_reason(error)}", shown) from error
    try:
        problem = _misfit(_validator(schema), plain)
    except Exception as error:
        raise AnswerError("answer", f"cannot be checked, its question is broken: {_reason(error)}", shown) from error
    if problem is not None:
        raise AnswerError(*problem, shown)
    return plain


def answer_value(declared: Any, value: Any) -> Any:
    """The plain answer as the type that the asking code declared; unchanged for a JSON Schema or None.

    Raises AnswerError, and nothing else, when the type does not take it.
    """
    if declared is None or isinstance(declared, dict):
        return value
    try:
        return msgspec.convert(value, declared, strict=True, str_keys=True, dec_hook=_load)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).rpartition(" - at `$") if " - at `$" in str(error) else (str(error), "", "")
        raise AnswerError(f"answer{path.rstrip('`')}", _cut(" ".join(problem.split()))) from error
    except Exception as error:  # No type for JSON data, or code of the type that fails in a way of its own.
        raise AnswerError("answer", f"cannot become {_shown(declared)}: {_reason(error)}") from error


def _schema_of_type(annotation: Any) -> dict[str, Any]:
    """JSON Schema of what msgspec knows, with pydantic models anywhere in it."""
    for name, cls in _FORMATS.items():
        if annotation is cls:  # msgspec itself leaves the format out where a time zone may be missing.
            return {"type": "string", "format": name}
    definitions: dict[str, Any] = {}

    def define(name: str, definition: Any) -> None:
        if definitions.setdefault(name, definition) != definition:
            raise ValueError(f"two different types in it have the name {name!r}")

    def of_model(cls: Any) -> dict[str, Any]:
        if not (isinstance(cls, type) and is_model(cls)):
            raise NotImplementedError
        # The definitions of a model are referred to from the root of the schema, wherever the model is in it.
        tree: dict[str, Any] = cls.model_json_schema()  # type: ignore[attr-defined]
        for name, definition in tree.pop("$defs", {}).items():
            define(name, definition)
        return tree

    tree = msgspec.json.schema(annotation, schema_hook=of_model)
    for name, definition in tree.get("$defs", {}).items():
        define(name, definition)
    return {**tree, "$defs": definitions} if definitions else tree


def _dump(value: Any) -> Any:
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"a {type_name(type(value))} cannot be written as JSON")


def _load(cls: Any, value: Any) -> Any:
    if is_model(cls):
        # As JSON, so that a strict model takes a date from the text that JSON has for it.
        return cls.model_validate_json(json.dumps(value))
    raise TypeError("it is no type for JSON data")


def _validator(schema: Any) -> Any:
    """What checks answers against a schema. Raises whatever jsonschema has to say against the schema itself."""
    if not isinstance(schema, dict):
        raise TypeError("a schema is an object")
    return _validator_of(json.dumps(schema))


@functools.lru_cache(maxsize=256)
def _validator_of(text: str) -> Any:
    """Made once for each schema: that takes longer than applying it."""
    import jsonschema
    from jsonschema_specifications import REGISTRY

    schema = json.loads(text)
    dialect = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    dialect.check_schema(schema)
    # 5.0 is an integer to JSON Schema, but no int to a program.
    types = dialect.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    formats = jsonschema.FormatChecker(_FORMATS_OF_JSONSCHEMA)
    for name, cls in _FORMATS.items():
        formats.checks(name, raises=msgspec.ValidationError)(_converts_to(cls))
    # A registry of its own: the default one fetches what a reference names.
    strict = jsonschema.validators.extend(dialect, type_checker=types)
    return strict(schema, registry=REGISTRY, format_checker=formats)


def _converts_to(cls: type) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if isinstance(value, str):
            msgspec.convert(value, cls)
        return True

    return check


def _misfit(validator: Any, value: Any) -> tuple[str, str] | None:
    """Where and how a value does not fit, by the error that tells most."""
    from jsonschema.exceptions import best_match

    error = best_match(validator.iter_errors(value))
    if error is None:
        return None
    path = "".join(at_index(step) if isinstance(step, int) else at_key(step) for step in error.absolute_path)
    # jsonschema shows the value, which may be long, before it says what is wrong with it.
    long = len(error.message) > _SHOWN
    problem = f"does not fit {error.validator}: {_brief(error.validator_value)}" if long else error.message
    return f"answer{path}", problem


def _check_references(schema: dict[str, Any]) -> None:
    """Raise for a reference to something that is not in the schema: the answering side could not follow it."""
    from jsonschema_specifications import REGISTRY
    from referencing import Resource
    from referencing.jsonschema import DRAFT202012

    root: Any = Resource.from_contents(schema, default_specification=DRAFT202012)
    waiting: list[tuple[Any, Any]] = [(root, REGISTRY.resolver_with_root(root))]
    for resource, resolver in waiting:
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(resource.contents, dict) and keyword in resource.contents:
                resolver.lookup(resource.contents[keyword])
        waiting += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _shown(schema: Any) -> str:
    try:
        return _cut(repr(schema))
    except Exception:
        return f"a {type_name(type(schema))}"


def _brief(schema: Any) -> str:
    try:
        return _cut(json.dumps(schema, ensure_ascii=True))
    except (TypeError, ValueError, RecursionError):
        return "something that cannot be shown"


def _reason(error: Exception) -> str:
    """The first line of what an error says: jsonschema goes on with the whole schema."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or leads back to itself"
    return _cut(getattr(error, "message", None) or str(error).partition("\n\n")[0] or type(error).__name__)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
