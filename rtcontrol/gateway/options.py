"""Settings of `rtcontrol serve --http`: the address, access rules, and the model for /v1 requests."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from rtcontrol.models.errors import UserError, read_text
from rtcontrol.serve.options import ServeOptions
from rtcontrol_client.wire.endpoint import is_loopback, split_host_port

TOKEN = re.compile(r"[A-Za-z0-9_.~-]{16,256}")
ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True)
class GatewayOptions:
    """The gateway's settings. `GatewayOptions.from_serve` creates them from the settings of `rtcontrol serve`."""

    host: str = "127.0.0.1"
    port: int = 8080
    origins: frozenset[str] = frozenset()  # pages of these other sites may connect, such as https://robot.example:8443
    token: str | None = field(default=None, repr=False)  # pages of `origins` and other machines need it
    static: Path | None = None  # folder of a user's pages
    model: str | None = None  # used for /v1 requests (None: a model that was trained on the request's tools)
    engine: str = "torch"
    value_tokens: int = 64  # maximum number of tokens of a generated value
    tool_sets: int = 8  # maximum number of open tool sets
    require_token: bool = False  # if True, programs on this machine also need the token
    body_timeout_s: float = 10.0
    decide_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.token is not None and not TOKEN.fullmatch(self.token):
            hint = "Use 16 to 256 letters, digits, and _ . ~ - (the token is sent in headers and addresses)."
            raise UserError("The access token is malformed.", hint)
        if self.token is None and (self.require_token or self.origins or not self.loopback):
            problem = (
                f"--http {self.host}:{self.port}, serve.allow_origin or serve.require_token needs an access token."
            )
            hint = "Set `serve.token_file=FILE` (a missing file is created), or use --http 127.0.0.1:PORT."
            raise UserError(problem, hint)
        if self.static is not None and not self.static.is_dir():
            raise UserError(f"serve.static={self.static} is not a folder.", "Give the folder of the pages.")

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
        return is_loopback(self.host)

    @classmethod
    def from_serve(cls, options: ServeOptions, http: str, token: str | None = None) -> GatewayOptions:
        """Return the settings for a server's options and the address `http` (HOST:PORT). If `token` is None, read the
        token from `options.token_file`. Raises UserError."""
        host, port = split_host_port(http)
        if not host or not port.isdigit() or int(port) > 65535:
            raise UserError(f"--http {http!r} is not HOST:PORT.", "Write for example 127.0.0.1:8080 or [::1]:8080.")
        if token is None and options.token_file is not None:
            token = read_token(options.token_file)
        return cls(
            host=host,
            port=int(port),
            origins=frozenset(map(normalize_origin, options.allow_origin)),
            token=token,
            static=options.static,
            model=options.model,
            engine=options.engine,
            value_tokens=options.value_tokens,
            require_token=options.require_token,
        )


def normalize_origin(text: str) -> str:
    """Return an origin as browsers send it: in lower case, without a final slash. Raises UserError."""
    plain = text.lower().removesuffix("/")
    if not ORIGIN.fullmatch(plain):
        hint = "Write only scheme, host and port, such as https://robot.example:8443. Wildcards are not supported."
        raise UserError(f"serve.allow_origin={text!r} is not an origin.", hint)
    return plain


def read_token(path: Path) -> str:
    """Read the access token from a file. If the file is missing, create it with a new token, readable only by its
    owner. Raises UserError."""
    try:
        if not path.exists():
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(secrets.token_urlsafe(32) + "\n")
        mode, token = path.stat().st_mode, read_text(path).strip()
    except OSError as error:
        problem = f"serve.token_file={path} cannot be used ({error.strerror or type(error).__name__})."
        raise UserError(problem, "Give a file that you may read or create.") from None
    if mode & 0o077:
        raise UserError(f"Other users can read serve.token_file={path}.", f"Run `chmod 600 {path}`.")
    return token
