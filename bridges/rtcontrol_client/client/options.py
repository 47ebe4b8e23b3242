"""The options of a client: what to ask of the server, and how the client itself behaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from rtcontrol_client.client.active import all_of
from rtcontrol_client.client.errors import ClientError, checked
from rtcontrol_client.client.values import plain
from rtcontrol_client.wire import LIMITS, PROTOCOL, curve, encode_msgpack
from rtcontrol_client.wire.limits import check_size
from rtcontrol_client.wire.messages import FunctionCall, Hello, Token
from rtcontrol_client.wire.pictures import PICTURES

CallLike = FunctionCall | Mapping[str, Any] | str


def call_list(given: Any) -> list[Any]:
    """Return safe calls (given as one call or name, or a list of these) as a list for the wire."""
    several = [] if given is None else given if isinstance(given, list) else [given]
    return [{"name": call} if isinstance(call, str) else call for call in several]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The hello's fields (docs/protocol.md, section 4), and how the client itself behaves (docs/clients.md). The server
    chooses options that are None.

    `agent`: the name of an agent on the server; or `tools`: OpenAI-style definitions; neither: the server's tools.
    `safe_call`: executed whenever no other call may act: a name, {"name": ..., "arguments": {...}}, or a list of these,
    one for each actuator.
    `calls_per_tick`: how many calls one observation may get at most, if the server gives several (see the welcome).
    `on_call`: called in its own thread with each new active call, and with each safe call. The result is reported; an
    exception is reported as a failure and makes safe active (`Declined`: as refused, and the call stays active). A slow
    handler delays the next call; a safe call that raises is repeated each period. `Client.close` waits for the handler.
    `on_safe`: called with safe calls instead, in another thread, even while an `on_call` has not returned, which must
    not undo the safe call (see `client.call().status`).
    `look`: called in its own thread, just in time for each tick of a server that paces; returns the observation as
    text, or as a map of data, or None. If `look` raises, the error is logged, and the tick has no new observation.
    `acknowledge`: keep only acknowledged calls in the model's history (default: if there is an `on_call`, which
    acknowledges by itself).
    `persist`: start a new session also after the server's bye, unless a person stopped the session on the server.
    `keys`: this client's `.key_secret` file, for a server that wants CURVE; `server_key`: the server's `.key` file
    (default: `server.key` next to `keys`; for a server named by /connect over https or on this machine, the key named).
    """

    without: ClassVar[Collection[str]] = ()  # options that this kind of client lacks

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
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the given options. Raises ClientError for unknown names, or values that the protocol forbids."""
        names = [field.name for field in fields(cls) if field.name not in cls.without]
        if unknown := sorted(given.keys() - names):
            raise ClientError(f"{unknown[0]}= is not an option of this client.", f"The options are {', '.join(names)}.")
        return cls(**given)

    def __post_init__(self) -> None:
        # Copy the values, so that later changes by the caller cannot make sending fail.
        with checked("hello"):
            for name in Hello.model_fields.keys() & self.__dataclass_fields__.keys():
                object.__setattr__(self, name, plain(getattr(self, name), name))
        for name in ("on_call", "on_safe", "look"):
            handler = getattr(self, name)
            if handler is not None and not callable(handler):
                raise ClientError(f"{name} is {handler!r:.40}, which is not a function.", "Give a function.")
        if self.look is not None and self.pacing == "client":
            raise ClientError('look= is for pacing="server".', "Use decide() here.")

    @cached_property
    def calls(self) -> tuple[FunctionCall, ...]:
        """The client's safe calls. Raises ClientError for a hello that no server accepts."""
        hello = self.hello(0)
        return all_of(hello.safe_calls, hello.safe_call)

    @property
    def acknowledges(self) -> bool:
        return self.on_call is not None if self.acknowledge is None else self.acknowledge

    def hello(self, t_ns: int, resume: Token | None = None, instruction: str | None = None) -> Hello:
        """Return the hello message for these options. Raises ClientError that names the wrong field."""
        if self.agent is not None and self.tools is not None:
            raise ClientError("An agent has its own tools.", "Give agent=NAME or tools=[...], not both.")
        values = {name: getattr(self, name) for name in Hello.model_fields if hasattr(self, name)}
        calls = call_list(self.safe_call)
        if len(calls) > 1:
            values["safe_calls"] = calls
        values |= {"safe_call": next(iter(calls), None), "protocol": list(PROTOCOL), "t_client_ns": t_ns}
        values["client"] = {"name": self.name[:64] or Options.name, "version": "1.0", "language": "python"}
        values |= {"resume": resume, "capabilities": [*(["executed"] if self.acknowledges else []), PICTURES]}
        with checked("hello"):
            hello = Hello.model_validate(values | ({} if instruction is None else {"instruction": instruction}))
            check_size([len(part) for part in encode_msgpack(hello)], LIMITS)
            return hello

    def key_pairs(self, named: bool = False) -> tuple[curve.KeyPair, str | None] | None:
        """Return this client's key pair and the server's public key, or None if the client has no keys.

        If /connect names the servers (`named`), it may name their keys, too: the server key is then None unless the
        user gave one. Raises ClientError.
        """
        if self.keys is None:
            return None
        try:
            path = Path(self.keys)
            server = Path(self.server_key) if self.server_key else path.parent / f"{curve.SERVER}.key"
            if named and self.server_key is None and not server.exists():
                return curve.load_pair(path), None
            return curve.load_pair(path), curve.load_public(server)
        except curve.KeyFileError as error:
            raise ClientError(error.what, error.remedy) from None
