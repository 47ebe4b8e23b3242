"""The conformance vectors are up to date and complete, and this codec and these rules pass them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client.client.active import is_expired
from rtcontrol_client.client.timing import OffsetFilter, PhaseLock
from rtcontrol_client.wire import LIMITS, Code, WireError, decode_json, decode_msgpack, encode_json, encode_msgpack
from rtcontrol_client.wire.messages import CallMessage, Message
from tests.conformance import FOLDER, expand, load, unity_meta
from tests.conformance.generate import files

FROM_CLIENT = {"hello", "observe", "executed", "instruct", "reset", "control", "picture", "ping", "pong"}
FROM_CLIENT |= {"error", "bye", "join", "leave", "observe_many"}
FROM_SERVER = {"welcome", "call", "call_many", "instruct", "control", "ping", "pong", "error", "bye"}
# Those for clients that announce or ask for it stand apart: the others do not know it.
ANNOUNCED = [load(name) for name in ("control", "several", "pictures", "crowd")]
VALID = [*load("valid"), *(vector for one in ANNOUNCED for vector in one["valid"])]
INVALID = [*load("invalid"), *(vector for one in ANNOUNCED for vector in one["invalid"])]
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


def named(vectors: list[dict[str, Any]]) -> Any:
    assert len({v["name"] for v in vectors}) == len(vectors), "two vectors of one name"
    return pytest.mark.parametrize("vector", vectors, ids=[v["name"] for v in vectors])


def parts_of(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(expand(p)) for p in vector["msgpack"]]


def test_vector_files_are_up_to_date() -> None:
    for name, text in files():
        assert (FOLDER / name).read_text("utf-8") == text, f"{name}: run `python -m tests.conformance.generate`"


@named(VALID)
def test_valid_messages_are_the_same_in_both_encodings(vector: dict[str, Any]) -> None:
    message = decode_json(json.dumps(vector["json"]))
    assert decode_msgpack(parts_of(vector)) == message
    assert decode_json(encode_json(message)) == message
    assert decode_msgpack(encode_msgpack(message)) == message
    assert (json.loads(encode_json(message)) == vector["json"]) == vector["canonical"]
    assert message.type in (FROM_CLIENT if vector["from"] == "client" else FROM_SERVER)


def test_every_message_has_full_and_minimal_vectors() -> None:
    seen: dict[str, list[set[str]]] = {}
    for vector in VALID:
        seen.setdefault(vector["json"]["type"], []).append(set(vector["json"]))
    for model in Message.__args__:
        kind = model.model_fields["type"].default
        known = set(model.model_fields)
        assert known <= set().union(*seen[kind]), kind
        required = {n for n, f in model.model_fields.items() if f.is_required()} | {"type"}
        # An observation needs one of its optional fields.
        assert any(fields == required for fields in seen[kind]) or kind == "observe", kind
    directions = {(v["from"], v["json"]["type"]) for v in VALID}
    assert directions == {("client", t) for t in FROM_CLIENT} | {("server", t) for t in FROM_SERVER}


@named(INVALID)
def test_invalid_messages_are_refused_by_code_and_field(vector: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        if "json" in vector:
            decode_json(expand(vector["json"]))
        else:
            decode_msgpack(parts_of(vector))
    assert (caught.value.code, caught.value.field) == (Code(vector["code"]), vector["field"])
    assert caught.value.message and caught.value.remedy
    said = f"{caught.value.message} {caught.value.remedy}"
    assert not any(word in said for word in ("Input", "should be", "docs/", "pydantic")), "say what to write"


@named(load("ttl")["age"])
def test_call_older_than_its_ttl_is_expired(vector: dict[str, Any]) -> None:
    verdict = "expire" if is_expired(vector["t_obs_ns"], vector["ttl_ms"], vector["now_ns"]) else "execute"
    assert verdict == vector["verdict"]


@named(load("clock"))
def test_clock_offset_after_exchanges_matches_vector(vector: dict[str, Any]) -> None:
    believed = OffsetFilter()
    for sample in vector["samples"]:
        believed.add(*sample)
    result = believed.best_offset(vector["samples"][-1][3] if vector["samples"] else 0)
    wanted = (vector["offset_ns"], vector["rtt_ns"])
    assert ((result.offset_ns, result.rtt_ns) if result else (None, None)) == wanted


@named(load("phase"))
def test_observations_are_due_just_in_time_for_next_tick(vector: dict[str, Any]) -> None:
    lock, clock, period_ns = PhaseLock(), OffsetFilter(), vector["period_ns"]
    for i, step in enumerate(vector["steps"]):
        if "ping" in step:
            clock.add(*step["ping"])
        elif "next" in step:
            offset = clock.best_offset(step["next"])
            assert lock.next_capture_ns(step["release_ns"], period_ns, offset, step["next"]) == step["due_ns"], (
                f"step {i}"
            )
        elif "observed" in step:
            lock.record_observation(step["observed"], period_ns, step["now_ns"])
        else:
            rest = {"session": "s" * 16, "tick": i, "epoch": 0, "ttl_ms": 500, "deadline_ns": 0}
            lock.receive(CallMessage.model_validate(rest | step["heard"]), period_ns, step["now_ns"])


def test_documented_messages_are_valid_in_both_encodings() -> None:
    result = re.findall(r"```json\n(.*)\n```\n(?:```hex\n((?:.*\n)+?)```)?", DOCUMENT.read_text("utf-8"))
    kinds = {decode_json(text).type for text, _ in result}
    assert kinds >= {"hello", "welcome", "observe", "call", "executed", "ping", "pong", "bye"}
    both = [(text, [bytes.fromhex(line) for line in lines.split()]) for text, lines in result if lines]
    assert {len(parts) for _, parts in both} == {1, 2}
    for text, parts in both:
        assert decode_msgpack(parts) == decode_json(text)


def test_document_lists_each_message_with_schema_fields() -> None:
    text = DOCUMENT.read_text("utf-8")
    for model in Message.__args__:
        kind = model.model_fields["type"].default
        section = re.search(rf"^### (?:\w+, )?{kind}\b.*?(?=^##)", text, re.M | re.S)
        assert section is not None, kind
        reported = documented(section[0])
        if reported:
            assert set(reported) == set(model.model_fields), kind
        schema = model.model_json_schema(by_alias=True)["properties"]
        for name, field in model.model_fields.items():
            assert f"`{name}`" in section[0], f"{kind}.{name}"
            if reported and name != "type":
                shape, default = reported[name]
                assert (default.split(";")[0] == "req") == field.is_required(), f"{kind}.{name}: {default}"
                if isinstance(field.default, (int, list, str)):
                    assert json.loads(default) == field.default, f"{kind}.{name}: {default}"
                for limit in limits_of(schema[name]):
                    # The rows name the types that section 4 begins with, whose limits stand there.
                    assert limit in shape or re.match("token|instant|count|duration|call map|as ", shape), (name, limit)
    for code in Code:
        assert f"| `{code}` |" in text
    for name, value in LIMITS.to_dict().items():
        assert f"| `{name}` | {value} |" in text


def documented(section: str) -> dict[str, tuple[str, str]]:
    """Return the type and the default of each field in the table of a section."""
    rows = (line[2:-1].split(" | ") for line in section.splitlines() if line.startswith("| `"))
    return {n: (row[1], row[2].strip(" `")) for row in rows if len(row) == 4 for n in re.findall(r"`(\w+)`", row[0])}


def limits_of(schema: dict[str, Any]) -> list[str]:
    """Return the bounds of a field in the form that the document uses."""
    arms = [arm for arm in schema.get("anyOf", [schema]) if arm != {"type": "null"}]
    bounds = ("maxLength", "maxItems", "minimum", "maximum")
    return [f"{arm[b]:g}" if arm[b] < 1e5 else str(arm[b]) for arm in arms for b in bounds if b in arm]


def test_unity_meta_files_and_version_are_up_to_date() -> None:
    package = unity_meta.PACKAGE
    shipped = {p.relative_to(package).as_posix(): p.read_text("utf-8") for p in package.rglob("*.meta")}
    assert shipped == unity_meta.metas(), "run `python -m tests.conformance.unity_meta`"
    version = json.loads((package / "package.json").read_text("utf-8"))["version"]
    assert f'string Version = "{version}"' in (package / "Runtime/Core/Session/RtClient.cs").read_text("utf-8")
