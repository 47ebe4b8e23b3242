"""The options of a client: the settings that it requests from the server, and settings of the client itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from rtcontrol_client.client.active import all_safe_calls
from rtcontrol_client.client.errors import ClientError, wrap_errors
from rtcontrol_client.client.values import to_plain
from rtcontrol_client.wire import LIMITS, PROTOCOL, curve, encode_msgpack
from rtcontrol_client.wire.limits import check_size
from rtcontrol_client.wire.messages import FunctionCall, Hello, Token
from rtcontrol_client.wire.pictures import PICTURES

CallLike = FunctionCall | Mapping[str, Any] | str


def to_call_list(option: Any) -> list[Any]:
    """Convert the option `safe_call` (None, a call or its name, or a list of these) to a list for messages."""
    several = [] if option is None else option if isinstance(option, list) else [option]
    return [{"name": call} if isinstance(call, str) else call for call in several]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a client, as described in docs/clients.md and docs/protocol.md (section 4). The server chooses the
    settings that are None.

    `agent` is the name of an agent on the server, `tools` are OpenAI-style definitions; without both, the session uses
    the server's tools. `safe_call` is executed whenever no other call is active. It is a name, a map
    {"name": ..., "arguments": {...}}, or a list of these, one for each actuator. `calls_per_tick` is the maximum number
    of calls for one observation.
    `on_call` is called on a separate thread with each new active call and each safe call. Its result is reported to the
    server. If it raises an error, the call counts as failed and the safe call becomes active (after `Declined`, the
    call counts as refused and stays active). While it runs, the next call waits; if it raises an error for a safe call,
    it is called again in each period. If `on_safe` is set, it gets the safe calls instead, on another thread, even
    while `on_call` runs; `on_call` must then not undo the safe call (see `client.call().status`).
    `look` is called on a separate thread shortly before each tick of the server, and returns the observation as text or
    as a mapping of data, or None. If `look` raises, the error is logged, and the tick has no new observation.
    With `acknowledge` the model's history has only acknowledged calls (default: True with `on_call`, whose calls are
    acknowledged automatically). With `persist` the client starts a new session after the server's bye, unless a person
    stopped the session on the server.
    `keys` is this client's `.key_secret` file, for a server that requires CURVE keys, and `server_key` the server's
    `.key` file (default: `server.key` in the folder of `keys`, else the key in a /connect response by https or from
    this machine).
    """

    excluded_options: ClassVar[Collection[str]] = ()  # options of `Client` that a subclass does not have

    agent: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    instruction: str | None = None
    model: str | None = None
    hz: float | None = None
    pacing: Literal["server", "client"] = "server"
    safe_call: CallLike | Sequence[CallLike] | None = None
    deadline_ms: float | None = None
    ttl_ms: float | None = None
    max_age_ms: float | None = None
    on_miss: Literal["hold", "safe"] | None = None
    hold_ms: float | None = None
    calls_per_tick: int | None = None
    robot: str | None = None
    name: str = "rtcontrol_client"
    on_call: Callable[[Any], Any] | None = None
    on_safe: Callable[[Any], Any] | None = None
    look: Callable[[], Any] | None = None
    acknowledge: bool | None = None
    persist: bool = False
    keys: str | Path | None = None
    server_key: str | Path | None = None
    connect_timeout_s: float | None = 30.0
    backoff_s: tuple[float, float] = (0.1, 2.0)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return options from values by name. Raises ClientError for an unknown name, or a value that is not valid."""
        names = [field.name for field in fields(cls) if field.name not in cls.excluded_options]
        if unknown := sorted(values.keys() - names):
            raise ClientError(f"{unknown[0]}= is not an option of this client.", f"The options are {', '.join(names)}.")
        return cls(**values)

    def __post_init__(self) -> None:
        # Copy the values, so that later changes by the caller cannot make sending fail.
        with wrap_errors("hello"):
            for name in Hello.model_fields.keys() & self.__dataclass_fields__.keys():
                object.__setattr__(self, name, to_plain(getattr(self, name), name))
        for name in ("on_call", "on_safe", "look"):
            handler = getattr(self, name)
            if handler is not None and not callable(handler):
                raise ClientError(f"{name} is {handler!r:.40}, which is not a function.", "Give a function.")
        if self.look is not None and self.pacing == "client":
            raise ClientError('look= is for pacing="server".', "Use decide() here.")

    @cached_property
    def calls(self) -> tuple[FunctionCall, ...]:
        """Return the client's safe calls. Raises ClientError if the hello message for these options is not valid."""
        hello = self.hello(0)
        return all_safe_calls(hello.safe_calls, hello.safe_call)

    @property
    def acknowledges_calls(self) -> bool:
        return self.on_call is not None if self.acknowledge is None else self.acknowledge

    def hello(self, t_ns: int, resume: Token | None = None, instruction: str | None = None) -> Hello:
        """Return the hello message for these options. Raises ClientError, which names the invalid field."""
        if self.agent is not None and self.tools is not None:
            raise ClientError("An agent has its own tools.", "Give agent=NAME or tools=[...], not both.")
        values = {name: getattr(self, name) for name in Hello.model_fields if hasattr(self, name)}
        calls = to_call_list(self.safe_call)
        if len(calls) > 1:
            values["safe_calls"] = calls
        values |= {"safe_call": next(iter(calls), None), "protocol": list(PROTOCOL), "t_client_ns": t_ns}
        values["client"] = {"name": self.name[:64] or Options.name, "version": "1.0", "language": "python"}
        values |= {"resume": resume, "capabilities": [*(["executed"] if self.acknowledges_calls else []), PICTURES]}
        with wrap_errors("hello"):
            hello = Hello.model_validate(values | ({} if instruction is None else {"instruction": instruction}))
            check_size([len(part) for part in encode_msgpack(hello)], LIMITS)
            return hello

    def key_pairs(self, is_server_named: bool = False) -> tuple[curve.KeyPair, str | None] | None:
        """Return this client's key pair and the server's public key, or None if the client has no keys.

        If `is_server_named`, a /connect response names the server, perhaps with its key; the public key is then None,
        unless the user has the server's key file. Raises ClientError if a key file cannot be used.
        """
        if self.keys is None:
            return None
        try:
            path = Path(self.keys)
            server = Path(self.server_key) if self.server_key else path.parent / f"{curve.SERVER}.key"
            if is_server_named and self.server_key is None and not server.exists():
                return curve.load_pair(path), None
            return curve.load_pair(path), curve.load_public(server)
        except curve.KeyFileError as error:
            raise ClientError(error.what, error.remedy) from None
