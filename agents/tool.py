"""Make tools from typed Python functions, with JSON schema, validation and execution."""

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
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import MAX_CLOSED, ClosedDomain, Free
from rtcontrol.models.schema.json_schema import normalise
from rtcontrol.models.schema.limits import Room, check_count, check_size
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema, checked, tool_schemas
from rtcontrol.models.schema.validator import Validator


@dataclass(frozen=True, init=False)
class OneOf:
    """An annotation for a parameter that has exactly these values, in this order."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.values)}


@dataclass(frozen=True)
class Range:
    """An annotation for a number from `low` to `high`, both included, in steps of `step` (None: any digits)."""

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
    """An annotation for parameters that depend on each other and share one head (JSON schema key `x-group`)."""

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


# Characters in the name of a remote tool at most; a longer name does not fit into protocol messages.
MAX_NAME = 256


class InvalidCall(ValueError):
    """An error for a call that the tools do not allow; the message names tool, parameter and rule."""


@dataclass(frozen=True)
class Tool:
    """A tool: its schema and the function that executes it; `adapters` convert JSON values to the annotated types.

    The definition of a `remote` tool comes from elsewhere, so its regular expressions are not trusted.
    """

    schema: ToolSchema
    function: Callable[..., Any]
    adapters: Mapping[str, pydantic.TypeAdapter[Any]]
    remote: bool = False

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def elsewhere(self) -> bool:
        """Return whether the tool has no function here and is executed elsewhere."""
        return self.remote and getattr(self.function, "__module__", None) == __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def tool(function: Callable[..., Any]) -> Tool:
    """Make a tool of a function with annotated parameters; the function's docstring becomes the description.

    A parameter with a default is optional. Raises UserError for a type without a schema, a parameter without an
    annotation, `*args`, or a default outside the domain.
    """
    name = function.__name__
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UserError(
            f"Tool {name}: an annotation cannot be resolved ({error}).", "Define its types at the top of the module."
        ) from None
    properties: dict[str, Any] = {}
    required: list[str] = []
    adapters: dict[str, pydantic.TypeAdapter[Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        where = f"Tool {name}, parameter {parameter.name}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UserError(f"{where}: star parameters have no schema.", "Name each parameter.")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UserError(f"{where}: calls pass arguments by name.", "Remove the `/`.")
        if parameter.name not in hints:
            raise UserError(f"{where}: no type annotation.", "Write e.g. `level: Annotated[int, OneOf(0, 50, 100)]`.")
        properties[parameter.name], adapters[parameter.name] = _schema_of(hints[parameter.name], where)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            properties[parameter.name]["default"] = _plain(parameter.default, where)
    body = {
        "name": name,
        "description": inspect.cleandoc(function.__doc__ or ""),
        "parameters": {"type": "object", "properties": properties, "required": required},
    }
    schema = ToolSchema.from_openai(body)
    for p in schema.parameters:
        _check_values(p, adapters[p.name], f"Tool {name}, parameter {p.name}")
    return Tool(schema, function, adapters)


def remote_tool(definition: Mapping[str, Any], room: Room | None = None) -> Tool:
    """Return the tool of an OpenAI-style definition, which is executed elsewhere and raises an error if it is called.

    Arguments stay plain JSON values. `room` is the remaining size limit for the whole set of tools. Raises UserError
    with tool, parameter and hint.
    """
    return _remote(ToolSchema.from_openai(definition, room))


def _remote(schema: ToolSchema) -> Tool:
    if len(schema.name) > MAX_NAME:
        problem = f"The tool {schema.name[:32]}... has a name of {len(schema.name)} characters."
        raise UserError(problem, f"Use a name of at most {MAX_NAME} characters.")

    def function(**arguments: Any) -> None:
        raise RuntimeError(f"The tool {schema.name} is executed by the client that defined it.")

    return Tool(schema, function, {p.name: _ANYTHING for p in schema.parameters}, remote=True)


_ANYTHING: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(Any)


def _plain(value: Any, where: str) -> Any:
    try:
        return pydantic.TypeAdapter(type(value)).dump_python(value, mode="json")
    except (PydanticUserError, PydanticSerializationError):
        raise UserError(f"{where}: the default {value!r} has no JSON form.", "Use a plain value or None.") from None


def _check_values(parameter: Parameter, adapter: pydantic.TypeAdapter[Any], where: str) -> None:
    """Raise UserError if the annotated type does not accept a listed value or a default."""
    domain = parameter.domain
    values = list(domain.values) if isinstance(domain, ClosedDomain) else []
    default = [parameter.schema["default"]] if "default" in parameter.schema else []
    if default and isinstance(domain, ClosedDomain) and not domain.holds(default[0]):
        shown = ", ".join(domain.texts[:12]) + (", ..." if len(domain.texts) > 12 else "")
        raise UserError(f"{where}: the default {default[0]!r} is outside its domain ({shown}).", "Choose one of these.")
    if default and (fault := Validator(parameter.schema, where).fault(default[0])) is not None:
        problem = f"{where}: the default {default[0]!r} is outside its domain ({fault})."
        raise UserError(problem, "Choose one inside it.")
    for value in values + default:
        try:
            adapter.validate_json(json.dumps(value), strict=True)
        except ValueError:
            raise UserError(
                f"{where}: the value {value!r} is not of the annotated type.", "Correct the value or the annotation."
            ) from None


def _schema_of(annotation: Any, where: str) -> tuple[dict[str, Any], pydantic.TypeAdapter[Any]]:
    """Return the JSON schema and the converter of an annotation: pydantic's schema with our constraints added."""
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
        raise UserError(f"{where}: the type {annotation!r} allows anything.", "Name a type that can be decoded.")
    schema = normalise(schema, where)
    schema.pop("title", None)
    return {**schema, **extra}, adapter


def _without_none(annotation: Any) -> Any:
    # `int | None = None` is an optional int. `<|null|>` means a missing argument, so null is not a value.
    if get_origin(annotation) in (typing.Union, types.UnionType):
        arms = [a for a in get_args(annotation) if a is not type(None)]
        if len(arms) == 1:
            return arms[0]
    return annotation


def _made(source: Any, room: Room) -> Tool:
    """Return the tool of a function, a pydantic model, or an OpenAI-style definition.

    The class name of a model becomes the tool's name, and its fields become the parameters.
    """
    if isinstance(source, Tool):
        return source
    if isinstance(source, Mapping):
        return remote_tool(source, room)
    if isinstance(source, type) and issubclass(source, pydantic.BaseModel):
        schema = source.model_json_schema()
        about = schema.get("description") or inspect.cleandoc(source.__dict__.get("__doc__") or "")
        return remote_tool({"name": source.__name__, "description": about, "parameters": schema}, room)
    if not callable(source) or not hasattr(source, "__name__"):
        raise UserError(
            f"{repr(source)[:80]} is not a tool.", "Give functions, pydantic models or OpenAI-style definitions."
        )
    return tool(source)


class Tools:
    """An agent's set of tools, which describes the tools to the model, and validates and executes calls.

    Each tool is given as a function (or its `tool`), a pydantic model, or an OpenAI-style definition. Models and
    definitions need functions that execute them (`bind`).
    """

    def __init__(self, tools: Sequence[Tool | Callable[..., Any] | Mapping[str, Any]]) -> None:
        if all(isinstance(t, Mapping) for t in tools) and tools:
            bound = [_remote(schema) for schema in tool_schemas([t for t in tools if isinstance(t, Mapping)])]
        else:
            check_size([t for t in tools if isinstance(t, Mapping)])
            check_count(len(tools))
            room = Room()
            bound = [_made(t, room) for t in tools]
        self.schemas = checked([t.schema for t in bound])
        self._tools = {t.name: t for t in bound}

    def __iter__(self) -> typing.Iterator[Tool]:
        return iter(self._tools.values())

    def openai(self) -> list[dict[str, Any]]:
        """Return the tools as OpenAI-style definitions, with parameters in head order; `Tools` accepts these again."""
        return [t.schema.exact() for t in self._tools.values()]

    def bind(self, **functions: Callable[..., Any]) -> Tools:
        """Return the same tools, but executed by these functions, such as those of an environment."""
        if unknown := sorted(set(functions) - set(self._tools)):
            raise UserError(f"No tool {unknown[0]!r} to bind.", f"The tools are: {', '.join(self._tools)}.")
        bound = [replace(t, function=functions.get(n, t.function)) for n, t in self._tools.items()]
        return Tools(bound)

    def validate(self, call: Call) -> Call:
        """Return the call if it is legal. Raises InvalidCall with tool, parameter and rule if not."""
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
            if (fault := self._fault(p, value)) is not None:
                raise InvalidCall(f"{call.name}: {p.name}={value!r}{fault}")
            if value is None and p.nullable:
                continue
            try:
                entry.adapters[p.name].validate_python(value)
            except ValueError as error:
                reason = str(error).splitlines()[-1].strip()
                raise InvalidCall(f"{call.name}: {p.name}={value!r}: {reason}") from None
        rules = entry.schema.rules
        if rules is not None and (fault := rules.fault(call.arguments)) is not None:
            raise InvalidCall(f"{call.name}: {fault}")
        return call

    @staticmethod
    def _fault(p: Parameter, value: Any) -> str | None:
        """Return the reason why a parameter does not accept a value, or None if it does."""
        if value is None and p.nullable:
            return None
        if isinstance(p.domain, ClosedDomain):
            return None if p.domain.holds(value) else " is not one of its values"
        fault = p.domain.judge.fault(value)
        return None if fault is None else f": {fault}"

    def convert(self, call: Call) -> dict[str, Any]:
        """Return the arguments of a valid call, converted to the annotated types such as an Enum or a dataclass."""
        adapters = self._tools[call.name].adapters
        return {k: adapters[k].validate_python(v) for k, v in call.arguments.items()}

    def execute(self, call: Call) -> Any:
        """Run the bound function with the arguments of a valid call, converted to the annotated types."""
        return self._tools[call.name].function(**self.convert(call))

    def remedies(self) -> dict[str, list[str]]:
        """Return for each tool the sentences of `remedies_of`: what costs extra forward passes, and what to change."""
        return {schema.name: remedies_of(schema) for schema in self.schemas}

    def warnings(self) -> list[str]:
        """Return the remedies as sentences that start with the tool's name."""
        each = [(name, remedy) for name, remedies in self.remedies().items() for remedy in remedies]
        return [f"Tool {name}{' ' if remedy.startswith('has ') else ', '}{remedy}" for name, remedy in each]


TOKENS = "so each of its tokens costs a forward pass"
LISTED = f"bounds and a step (Range), or an enum (OneOf), of at most {MAX_CLOSED} values"


def remedies_of(tool: ToolSchema) -> list[str]:
    """Return a sentence for each parameter or group that costs extra forward passes, with what to change."""
    sentences: list[str] = []
    slots = tool.slots()
    for p in tool.parameters:
        default = p.schema.get("default")
        if default is not None and isinstance(p.domain, ClosedDomain) and not p.domain.holds(default):
            problem = f"its default {json.dumps(default)[:40]} is none of its values, and is not read"
            sentences.append(f"parameter {p.name}: {problem}. Remedy: correct it.")
        if isinstance(p.domain, Free):
            values = "values are not listed" if p.domain.grid is None else f"{p.domain.grid.count} values are too many"
            sentences.append(f"parameter {p.name}: its {values}, {TOKENS}. Remedy: {LISTED}.")
    for slot in slots:
        if isinstance(slot.domain, Free) and all(isinstance(p.domain, ClosedDomain) for p in slot.parameters):
            names = ", ".join(p.name for p in slot.parameters)
            sentences.append(
                f"parameters {names}: together in one head they have over {MAX_CLOSED} values, {TOKENS}. "
                "Remedy: fewer values of each, or fewer parameters in the group."
            )
    units = {p.group or p.name for p in tool.parameters}
    if len(units) > MAX_HEADS:
        sentences.append(
            f"has {len(units)} parameters for {MAX_HEADS} heads: those from the sixth on share head 6 as one JSON "
            "object, which costs more forward passes. Remedy: fewer parameters, or x-group (Group) for those that "
            "belong together."
        )
    return sentences
