"""The messages of a crowd: many characters over one connection. docs/crowds.md explains them.

One message has parts, one a member. A part that is wrong is refused by itself: it is left out of the message's list,
and stands in `faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from rtcontrol_client.wire.base import (
    CallFields,
    Count,
    Hertz,
    MessagePart,
    Milliseconds,
    Name,
    Nanoseconds,
    OfSession,
    SafeCalls,
    Text,
    Whole,
    whole,
)
from rtcontrol_client.wire.errors import WireError, refusal_of
from rtcontrol_client.wire.limits import Limits, check_value, large

MEMBERS = 4096  # of a crowd, at most
PARTS = 1024  # of a message
# Where we send them: fewer, with half of the items that a message may hold, and so few bytes of text that no escapes of
# JSON's take it beyond the limit.
SENT, ITEMS, TEXT_BYTES = 256, 8_192, 160_000
Members = Annotated[Whole, Field(ge=1, le=MEMBERS)]
Priority = Annotated[Whole, Field(ge=0, le=9)]


class CrowdWish(MessagePart):
    """In a hello: a crowd is asked for, of so many members at most."""

    members: Members | None = None


class CrowdTerms(MessagePart):
    """In a welcome: so many members at most, and so many parts of a message."""

    members: Members
    parts: Members


class Member(MessagePart):
    """One character. What is left out is as in the hello. A higher `epoch` is another life under the same id."""

    id: Name
    epoch: Count = 0
    instruction: Text | None = None
    hz: Hertz | None = None
    deadline_ms: Milliseconds | None = None
    ttl_ms: Milliseconds | None = None
    priority: Priority = 0  # 9 is the most urgent
    every_tick: bool = False  # it is asked at its full rate also where nothing happens
    safe_calls: SafeCalls | None = None


class MemberLook(MessagePart):
    """What one member saw: `text`, or `data` that the agent makes it of."""

    id: Name
    seq: Count  # grows with each of the member's
    t_ns: Nanoseconds  # when it was captured, by the client's clock
    text: Text | None = None
    data: dict[str, Any] | None = None


class MemberCall(CallFields):
    """What one member is to do."""

    id: Name


class MemberError(MessagePart):
    """Why the part of one member was refused; `field` is within the part."""

    id: str | None = None
    code: str
    message: str
    remedy: str = ""
    field: str | None = None
    seq: Count | None = None


@dataclass(frozen=True, slots=True)
class PartFault:
    """A part that is refused: what it was, as far as that can be told, and why."""

    id: str | None
    seq: int | None
    error: WireError

    @classmethod
    def of(cls, part: Any, error: WireError) -> Self:
        """`part` as it came."""
        named, seq = (part.get("id"), whole(part.get("seq"))) if isinstance(part, dict) else (None, None)
        counts = isinstance(seq, int) and not isinstance(seq, bool) and 0 <= seq < 1 << 53
        return cls(named[:64] if isinstance(named, str) else None, seq if counts else None, error)

    def message_part(self) -> MemberError:
        """As an `error` tells it."""
        error = self.error
        return MemberError(
            id=self.id,
            code=error.code.value,
            message=error.message[:300],
            remedy=error.remedy[:300],
            field=error.field and error.field[:100],
            seq=self.seq,
        )


_schema = cache(lambda kind: kind.model_json_schema(by_alias=True))


class OfParts(OfSession):
    """Base of a message with parts: the list named `parts_field`."""

    parts_field: ClassVar[str]
    _faults: tuple[PartFault, ...] = PrivateAttr(default=())

    @property
    def faults(self) -> tuple[PartFault, ...]:
        """The parts that are none."""
        return self._faults

    @model_validator(mode="wrap")
    @classmethod
    def _each_by_itself(cls, value: Any, handler: Callable[[Any], Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            wrong = _wrong_parts(error, cls.parts_field)
            if not wrong or not isinstance(value, dict):
                raise
        parts = value[cls.parts_field]
        made = handler({**value, cls.parts_field: [part for i, part in enumerate(parts) if i not in wrong]})
        made._faults = tuple(cls._fault(parts[i], first) for i, first in wrong.items())
        return made

    @classmethod
    def _fault(cls, part: Any, first: Any) -> PartFault:
        if isinstance(part, PartFault):
            return part  # found before it came here
        kind = cls.model_fields["type"].default
        return PartFault.of(part, refusal_of(first, first["loc"], kind, _schema(cls), inside=2))


def _wrong_parts(error: ValidationError, field: str) -> dict[int, Any]:
    """The first error of each part that has one."""
    wrong: dict[int, Any] = {}
    for one in error.errors(include_url=False):
        if one["loc"][:1] == (field,) and len(one["loc"]) > 1 and isinstance(one["loc"][1], int):
            wrong.setdefault(one["loc"][1], one)
    return wrong


class Join(OfParts):
    """Client -> server: members come in. One that is there, with the same epoch, takes these terms."""

    type: Literal["join"] = "join"
    parts_field: ClassVar[str] = "members"
    members: Annotated[list[Member], Field(max_length=PARTS)]


class Leave(OfSession):
    """Client -> server: members go. Of one that is not there, nothing."""

    type: Literal["leave"] = "leave"
    ids: Annotated[list[Name], Field(max_length=MEMBERS)]


class ObserveMany(OfParts):
    """Client -> server: what members saw."""

    type: Literal["observe_many"] = "observe_many"
    parts_field: ClassVar[str] = "looks"
    looks: Annotated[list[MemberLook], Field(max_length=PARTS)]


class CallMany(OfParts):
    """Server -> client: what members are to do now."""

    type: Literal["call_many"] = "call_many"
    parts_field: ClassVar[str] = "calls"
    t_server_ns: Nanoseconds  # when it was sent
    calls: Annotated[list[MemberCall], Field(max_length=PARTS)]


def check_parts(header: dict[str, Any], parts: str, limits: Limits) -> None:
    """The same of a message whose list `parts` has a part a member: of those that are wrong its refusal takes the
    place. Raises WireError for what is wrong with the message."""
    each: list[Any] = header[parts]
    total = check_value({**header, parts: [None] * len(each)}, limits)
    inner = replace(limits, max_depth=limits.max_depth - 2)
    for i, part in enumerate(each):
        try:
            total += check_value(part, inner)
        except WireError as error:
            each[i] = PartFault.of(part, error)
        if total > limits.max_total_items:
            raise large("the message's items together", "max_total_items", limits)


Part = TypeVar("Part", bound=MessagePart)


def in_messages(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """The parts by messages, in order: as many as one may have."""
    some: list[Part] = []
    items = size = 0
    for part in parts:
        more, text = _weight(part)
        if some and (len(some) >= SENT or items + more > ITEMS or size + text > TEXT_BYTES):
            yield some
            some, items, size = [], 0, 0
        some.append(part)
        items, size = items + more, size + text
    if some:
        yield some


def _weight(value: Any) -> tuple[int, int]:
    """Items, and bytes of text."""
    if isinstance(value, str):
        return 1, len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, MessagePart):
        value = value.__dict__
    if isinstance(value, dict):
        inner = [_weight(one) for one in (*value.values(), *value)]
    elif isinstance(value, (list, tuple)):
        inner = [_weight(one) for one in value]
    else:
        return 1, 8
    return 1 + sum(items for items, _ in inner), sum(size for _, size in inner)


WITH_PARTS = {one.model_fields["type"].default: one.parts_field for one in (Join, ObserveMany, CallMany)}
