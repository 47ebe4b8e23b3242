"""Random valid messages, for hypothesis: of the schema that the messages themselves have."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st
from pydantic import TypeAdapter

from rtcontrol.bridges.wire.messages import ANY, DTYPES, Message

MODELS: dict[str, Any] = TypeAdapter(Message).json_schema(by_alias=True)["$defs"]
# Surrogates have no UTF-8; every other character must pass.
CHARACTERS = st.characters(exclude_categories=("Cs",))
texts = st.text(CHARACTERS, max_size=40)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | finite | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    dtype, shape = draw(st.sampled_from(sorted(DTYPES))), draw(st.lists(st.integers(0, 3), max_size=4))
    size = math.prod(shape) * DTYPES[dtype]
    name = draw(st.text(CHARACTERS, min_size=1, max_size=64))
    return {"name": name, "dtype": dtype, "shape": shape, "data": draw(st.binary(min_size=size, max_size=size))}


def of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a JSON schema of a message takes."""
    kind, low = schema.get("type"), schema.get("minimum", schema.get("ge"))
    if "anyOf" in schema:
        return st.one_of([of(one) for one in schema["anyOf"]])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return arrays() if name == "Array" else model(name)
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if kind == "string":
        low = schema.get("minLength", 0)
        return st.text(CHARACTERS, min_size=low, max_size=min(schema.get("maxLength", 40), low + 40))
    if kind == "integer":
        return st.integers(-(1 << 63) if low is None else low, schema.get("le", schema.get("lt", 1 << 63) - 1))
    if kind == "number":
        return st.floats(low, schema.get("maximum"), allow_nan=False, allow_infinity=False)
    if kind == "array":
        low = schema.get("minItems", 0)
        return st.lists(of(schema["items"]), min_size=low, max_size=min(schema.get("maxItems", 3), max(3, low)))
    if kind == "object":
        more = schema["additionalProperties"]
        return st.dictionaries(texts, values if more is True else of(more), max_size=4)
    return {"boolean": st.booleans(), "null": st.none()}[str(kind)]


def model(name: str) -> st.SearchStrategy[dict[str, Any]]:
    fields = {field: of(schema) for field, schema in MODELS[name]["properties"].items()}
    if name == "Hello":
        fields["protocol"] = st.integers(0, 9).map(lambda minor: [1, minor])
    if name == "Instruct":
        fields["instruction"] = texts.filter(str.strip)
    # An observation needs one of its optional fields.
    required = {"type", *MODELS[name].get("required", ()), *(["text"] if name == "Observe" else [])} & set(fields)
    if name == "Observe":
        fields["text"] = texts
    optional = {field: fields.pop(field) for field in set(fields) - required}
    return st.fixed_dictionaries(fields, optional=optional)


messages = st.one_of([model(m.__name__) for m in Message.__args__]).map(ANY.validate_python)
