"""Create tools from typed Python functions, pydantic models or JSON schemas, and validate and execute calls of them."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin

import pydantic
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError

from rtcontrol.models.call import Call
from rtcontrol.models.decode.probe import probe_hints
from rtcontrol.models.docstrings import docstring
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import MAX_CLOSED, ClosedDomain, FreeDomain
from rtcontrol.models.schema.json_schema import normalise
from rtcontrol.models.schema.limits import SchemaBudget, check_count, check_size
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema, check_tools, tool_schemas
from rtcontrol.models.schema.validator import Validator


@dataclass(frozen=True, init=False)
class OneOf:
    """An annotation that lists all allowed values of a parameter, in order."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.values)}


@dataclass(frozen=True)
class Range:
    """An annotation for a number from `low` to `high` (inclusive), in steps of `step` (None: any number)."""

    low: float
    high: float
    step: float | None = None

    def schema(self) -> dict[str, Any]:
        bounds: dict[str, Any] = {"minimum": self.low, "maximum": self.high}
        return bounds if self.step is None else {**bounds, "multipleOf": self.step}


@dataclass(frozen=True)
class Text:
    """An annotation for text of at most `max_length` characters that matches the regular expression `pattern`."""

    max_length: int
    pattern: str | None = None

    def schema(self) -> dict[str, Any]:
        length: dict[str, Any] = {"maxLength": self.max_length}
        return length if self.pattern is None else {**length, "pattern": self.pattern}


@dataclass(frozen=True)
class Group:
    """An annotation for parameters that are decoded together, by the same head (JSON schema key `x-group`)."""

    name: str

    def schema(self) -> dict[str, Any]:
        return {"x-group": self.name}


@dataclass(frozen=True)
class Doc:
    """An annotation with the description of a parameter."""

    text: str

    def schema(self) -> dict[str, Any]:
        return {"description": self.text}


CONSTRAINTS = (OneOf, Range, Text, Group, Doc)


# Maximum characters of a remote tool's name. Protocol messages allow no longer names.
MAX_NAME_LENGTH = 256


class InvalidCall(ValueError):
    """Raised for a call that does not match the tools' schemas; the message names tool, parameter and rule."""


@dataclass(frozen=True)
class Tool:
    """A tool with its schema and the function that executes it. `adapters` convert JSON values to annotated types.

    `remote` is True if another program sent the tool's definition; its regular expressions are then not trusted.
    """

    schema: ToolSchema
    function: Callable[..., Any]
    adapters: Mapping[str, pydantic.TypeAdapter[Any]]
    remote: bool = False

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def has_no_function(self) -> bool:
        """Return whether the tool has no function in this process, so that another program must execute it."""
        return self.remote and getattr(self.function, "__module__", None) == __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def tool(function: Callable[..., Any]) -> Tool:
    """Return a tool for a function with annotated parameters; the function's docstring becomes the description.

    A parameter with a default is optional. Raises UserError for a type without a JSON schema, a parameter without an
    annotation, `*args` or `**kwargs`, or a default that is not an allowed value.
    """
    name = function.__name__
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UserError(
            f"Tool {name}: an annotation cannot be resolved ({error}).", "Define the type at the top of the module."
        ) from None
    properties: dict[str, Any] = {}
    required: list[str] = []
    adapters: dict[str, pydantic.TypeAdapter[Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        where = f"Tool {name}, parameter {parameter.name}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UserError(f"{where}: `*args` and `**kwargs` have no schema.", "List each parameter by name.")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UserError(f"{where}: calls pass arguments by name, but this is positional-only.", "Remove the `/`.")
        if parameter.name not in hints:
            raise UserError(f"{where}: no type annotation.", "Write e.g. `level: Annotated[int, OneOf(0, 50, 100)]`.")
        properties[parameter.name], adapters[parameter.name] = _annotation_schema(hints[parameter.name], where)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            properties[parameter.name]["default"] = _to_json_value(parameter.default, where)
    body = {
        "name": name,
        "description": docstring(function),
        "parameters": {"type": "object", "properties": properties, "required": required},
    }
    schema = ToolSchema.from_openai(body)
    for p in schema.parameters:
        _check_values(p, adapters[p.name], f"Tool {name}, parameter {p.name}")
    return Tool(schema, function, adapters)


def remote_tool(definition: Mapping[str, Any], room: SchemaBudget | None = None) -> Tool:
    """Return a tool for an OpenAI-style definition. Another program executes it; calling it here raises RuntimeError.

    Arguments are not converted from JSON values. `room` is the remaining size limit for all tools together. Raises
    UserError with tool, parameter and hint if the definition is not supported.
    """
    return _remote_tool(ToolSchema.from_openai(definition, room))


def _remote_tool(schema: ToolSchema) -> Tool:
    if len(schema.name) > MAX_NAME_LENGTH:
        problem = f"The name of the tool {schema.name[:32]}... has {len(schema.name)} characters."
        raise UserError(problem, f"Use a name of at most {MAX_NAME_LENGTH} characters.")

    def function(**arguments: Any) -> None:
        raise RuntimeError(f"The tool {schema.name} cannot run here: only the client that defined it can execute it.")

    return Tool(schema, function, {p.name: _ANY_VALUE for p in schema.parameters}, remote=True)


_ANY_VALUE: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(Any)


def _to_json_value(value: Any, where: str) -> Any:
    try:
        return pydantic.TypeAdapter(type(value)).dump_python(value, mode="json")
    except (PydanticUserError, PydanticSerializationError):
        raise UserError(f"{where}: the default {value!r} has no JSON form.", "Use a JSON value or None.") from None


def _check_values(parameter: Parameter, adapter: pydantic.TypeAdapter[Any], where: str) -> None:
    """Raise UserError if the annotated type does not accept one of the schema's listed values, or the default."""
    domain = parameter.domain
    values = list(domain.values) if isinstance(domain, ClosedDomain) else []
    default = [parameter.schema["default"]] if "default" in parameter.schema else []
    if default and isinstance(domain, ClosedDomain) and not domain.contains(default[0]):
        shown = ", ".join(domain.texts[:12]) + (", ..." if len(domain.texts) > 12 else "")
        raise UserError(f"{where}: the default {default[0]!r} is not one of its values.", f"Use one of: {shown}.")
    if default and (fault := Validator(parameter.schema, where).violation(default[0])) is not None:
        problem = f"{where}: the default {default[0]!r} is not allowed ({fault})."
        raise UserError(problem, "Use an allowed default.")
    for value in values + default:
        try:
            adapter.validate_json(json.dumps(value), strict=True)
        except ValueError:
            raise UserError(
                f"{where}: the value {value!r} is not of the annotated type.", "Correct the value or the annotation."
            ) from None


def _annotation_schema(annotation: Any, where: str) -> tuple[dict[str, Any], pydantic.TypeAdapter[Any]]:
    """Return the JSON schema of an annotation (pydantic's, plus those of OneOf, Range and so on) and its converter."""
    extra: dict[str, Any] = {}
    annotation = _without_none(annotation)
    if get_origin(annotation) is Annotated:
        bare, *metadata = get_args(annotation)
        for item in metadata:
            if isinstance(item, CONSTRAINTS):
                extra |= item.schema()
        rest = [m for m in metadata if not isinstance(m, CONSTRAINTS)]
        annotation = Annotated[(bare, *rest)] if rest else bare
    annotation = _without_none(annotation)
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
        schema = adapter.json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError) as error:
        raise UserError(
            f"{where}: the type {annotation!r} has no JSON schema ({str(error).splitlines()[0]}).",
            "Use int, float, bool, str, Literal, an Enum, list[...], a dataclass or a typing_extensions.TypedDict.",
        ) from error
    if not schema:
        raise UserError(f"{where}: the type {annotation!r} allows any value.", "Use a type such as int or an Enum.")
    schema = normalise(schema, where)
    schema.pop("title", None)
    return {**schema, **extra}, adapter


def _without_none(annotation: Any) -> Any:
    # Treat `int | None = None` as an optional int: `<|null|>` means a missing argument, so None is not a value.
    if get_origin(annotation) in (typing.Union, types.UnionType):
        types_without_none = [a for a in get_args(annotation) if a is not type(None)]
        if len(types_without_none) == 1:
            return types_without_none[0]
    return annotation


def _to_tool(source: Any, room: SchemaBudget) -> Tool:
    """Return a tool for a function, for a pydantic model (its class name and fields become name and parameters), or for
    an OpenAI-style definition."""
    if isinstance(source, Tool):
        return source
    if isinstance(source, Mapping):
        return remote_tool(source, room)
    if isinstance(source, type) and issubclass(source, pydantic.BaseModel):
        schema = source.model_json_schema()
        about = schema.get("description") or docstring(source)
        return remote_tool({"name": source.__name__, "description": about, "parameters": schema}, room)
    if not callable(source) or not hasattr(source, "__name__"):
        raise UserError(
            f"{repr(source)[:80]} is not a tool.", "Use functions, pydantic models or OpenAI-style definitions."
        )
    return tool(source)


class Tools:
    """The tools of an agent, with methods that validate and execute calls.

    `tools` are functions, objects that `tool` returned, pydantic models, or OpenAI-style definitions. Tools of pydantic
    models and definitions can be executed only after `bind` has set their functions.
    """

    def __init__(self, tools: Sequence[Tool | Callable[..., Any] | Mapping[str, Any]]) -> None:
        if all(isinstance(t, Mapping) for t in tools) and tools:
            entries = [_remote_tool(schema) for schema in tool_schemas([t for t in tools if isinstance(t, Mapping)])]
        else:
            check_size([t for t in tools if isinstance(t, Mapping)])
            check_count(len(tools))
            room = SchemaBudget()
            entries = [_to_tool(t, room) for t in tools]
        self.schemas = check_tools([t.schema for t in entries])
        self._tools = {t.name: t for t in entries}

    def __iter__(self) -> typing.Iterator[Tool]:
        return iter(self._tools.values())

    def openai(self) -> list[dict[str, Any]]:
        """Return OpenAI-style definitions of the tools, which `Tools` accepts; parameters are in decoding order."""
        return [t.schema.exact() for t in self._tools.values()]

    def bind(self, **functions: Callable[..., Any]) -> Tools:
        """Return a copy with functions that execute the tools; `functions` maps names of tools to functions."""
        if unknown := sorted(set(functions) - set(self._tools)):
            raise UserError(f"The tool {unknown[0]!r} does not exist.", f"The tools are: {', '.join(self._tools)}.")
        return Tools([replace(t, function=functions.get(n, t.function)) for n, t in self._tools.items()])

    def validate(self, call: Call) -> Call:
        """Return the call if the tools' schemas allow it, else raise InvalidCall with tool, parameter and rule."""
        entry = self._tools.get(call.name)
        if entry is None:
            raise InvalidCall(f"unknown tool {call.name!r}; the tools are {', '.join(self._tools)}")
        known = {p.name for p in entry.schema.parameters}
        if extra := sorted(set(call.arguments) - known):
            raise InvalidCall(f"{call.name}: unknown parameter {extra[0]!r}")
        for p in entry.schema.parameters:
            if p.name not in call.arguments:
                if p.required:
                    raise InvalidCall(f"{call.name}: {p.name} is missing")
                continue
            value = call.arguments[p.name]
            if (fault := self._reason_invalid(p, value)) is not None:
                raise InvalidCall(f"{call.name}: {p.name}={value!r}{fault}")
            if value is None and p.nullable:
                continue
            try:
                entry.adapters[p.name].validate_python(value)
            except ValueError as error:
                reason = str(error).splitlines()[-1].strip()
                raise InvalidCall(f"{call.name}: {p.name}={value!r}: {reason}") from None
        rules = entry.schema.rules
        if rules is not None and (fault := rules.violation(call.arguments)) is not None:
            raise InvalidCall(f"{call.name}: {fault}")
        return call

    @staticmethod
    def _reason_invalid(p: Parameter, value: Any) -> str | None:
        """Return why a value is not valid for a parameter, as the end of a sentence; None if the value is valid."""
        if value is None and p.nullable:
            return None
        if isinstance(p.domain, ClosedDomain):
            return None if p.domain.contains(value) else " is not one of its values"
        fault = p.domain.validator.violation(value)
        return None if fault is None else f": {fault}"

    def convert(self, call: Call) -> dict[str, Any]:
        """Return the arguments of a valid call, converted to the annotated types (such as an Enum or a dataclass)."""
        adapters = self._tools[call.name].adapters
        return {k: adapters[k].validate_python(v) for k, v in call.arguments.items()}

    def execute(self, call: Call) -> Any:
        """Run the tool's function with the arguments of a valid call, converted to the annotated types."""
        return self._tools[call.name].function(**self.convert(call))

    def hints(self) -> dict[str, list[str]]:
        """Return the sentences of `cost_hints` and `probe_hints` for each tool, by the tool's name."""
        rare = probe_hints(self.schemas)
        return {schema.name: [*cost_hints(schema), *rare[schema.name]] for schema in self.schemas}

    def warnings(self) -> list[str]:
        """Return the sentences of `hints` as one list; each starts with the tool's name."""
        pairs = [(name, sentence) for name, sentences in self.hints().items() for sentence in sentences]
        return [f"Tool {name}{' ' if sentence.startswith('has ') else ', '}{sentence}" for name, sentence in pairs]


TOKEN_COST = "so each of its tokens costs a forward pass"
USE_LISTED_VALUES = f"bounds and a step (Range), or an enum (OneOf), of at most {MAX_CLOSED} values"


def cost_hints(tool: ToolSchema) -> list[str]:
    """Return sentences about parameters that need extra forward passes, each with a hint."""
    sentences: list[str] = []
    slots = tool.slots()
    for p in tool.parameters:
        default = p.schema.get("default")
        if default is not None and isinstance(p.domain, ClosedDomain) and not p.domain.contains(default):
            problem = f"its default {json.dumps(default)[:40]} is not one of its values, and is ignored"
            sentences.append(f"parameter {p.name}: {problem}. Hint: correct the default.")
        if isinstance(p.domain, FreeDomain):
            values = "values are not listed" if p.domain.grid is None else f"{p.domain.grid.count} values are too many"
            sentences.append(f"parameter {p.name}: its {values}, {TOKEN_COST}. Hint: use {USE_LISTED_VALUES}.")
    for slot in slots:
        if isinstance(slot.domain, FreeDomain) and all(isinstance(p.domain, ClosedDomain) for p in slot.parameters):
            names = ", ".join(p.name for p in slot.parameters)
            sentences.append(
                f"parameters {names}: together in one head they have over {MAX_CLOSED} values, {TOKEN_COST}. "
                "Hint: use fewer values for each, or fewer parameters in the group."
            )
    units = {p.group or p.name for p in tool.parameters}
    if len(units) > MAX_HEADS:
        sentences.append(
            f"has {len(units)} parameters for {MAX_HEADS} heads: those from the sixth on share head 6 as one JSON "
            "object, which costs more forward passes. Hint: use fewer parameters, or x-group (Group) for "
            "parameters that belong together."
        )
    return sentences
