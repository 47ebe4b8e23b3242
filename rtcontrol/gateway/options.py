"""Settings of `rtcontrol serve --http`: the address, access rules, and the model for /v1 requests."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from rtcontrol.models.errors import UserError, read_text
from rtcontrol.serve.options import ServeOptions
from rtcontrol_client.wire.endpoint import host_port, is_loopback

TOKEN = re.compile(r"[A-Za-z0-9_.~-]{16,256}")
ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True)
class GatewayOptions:
    """The gateway's settings; `of` creates them from the options of `rtcontrol serve`.

    `origins` are other sites whose pages may connect (`https://robot.example:8443`). Such pages and other machines need
    the `token`; with `require_token`, programs on this machine do, too. `model` (None: the one that was trained on the
    request's tools) and `engine` decide /v1 requests; the last `tool_sets` tool sets stay open.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    origins: frozenset[str] = frozenset()
    token: str | None = field(default=None, repr=False)
    static: Path | None = None
    model: str | None = None
    engine: str = "torch"
    value_tokens: int = 64
    tool_sets: int = 8
    require_token: bool = False
    body_timeout_s: float = 10.0
    decide_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.token is not None and not TOKEN.fullmatch(self.token):
            hint = "Use 16 to 256 letters, digits, and _ . ~ - (the token is sent in headers and addresses)."
            raise UserError("The access token is malformed.", hint)
        if self.token is None and (self.require_token or self.origins or not self.loopback):
            raise UserError(
                f"--http {self.host}:{self.port} has no access token. Other machines, serve.allow_origin and "
                "serve.require_token need one.",
                "Give one with `serve.token_file=FILE` (created with mode 600 if missing), or bind 127.0.0.1.",
            )
        if self.static is not None and not self.static.is_dir():
            raise UserError(f"serve.static={self.static} is not a folder.", "Give the folder that holds the pages.")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @classmethod
    def of(cls, options: ServeOptions, http: str, token: str | None = None) -> GatewayOptions:
        """Return the settings for a server's options at `HOST:PORT`. `token` replaces the file's. Raises UserError."""
        host, port = host_port(http)
        if not host or not port.isdigit() or int(port) > 65535:
            raise UserError(f"--http {http!r} is not HOST:PORT.", "Write for example 127.0.0.1:8080 or [::1]:8080.")
        if token is None and options.token_file is not None:
            token = read_token(options.token_file)
        return cls(
            host=host,
            port=int(port),
            origins=frozenset(map(origin, options.allow_origin)),
            token=token,
            static=options.static,
            model=options.model,
            engine=options.engine,
            value_tokens=options.value_tokens,
            require_token=options.require_token,
        )


def origin(text: str) -> str:
    """Return an origin in the form that browsers send. Raises UserError for invalid text."""
    plain = text.lower().removesuffix("/")
    if not ORIGIN.fullmatch(plain):
        hint = "Write scheme, host and port only, such as https://robot.example:8443. There is no wildcard."
        raise UserError(f"serve.allow_origin={text!r} is not an origin.", hint)
    return plain


def read_token(path: Path) -> str:
    """Return the token in a file; a missing file is created for its owner alone. Raises UserError."""
    try:
        if not path.exists():
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(secrets.token_urlsafe(32) + "\n")
        mode, token = path.stat().st_mode, read_text(path).strip()
    except OSError as error:
        problem = f"serve.token_file={path} cannot be used ({type(error).__name__})."
        raise UserError(problem, "Give a file that you may read or create.") from None
    if mode & 0o077:
        raise UserError(f"serve.token_file={path} can be read by other users.", f"Run `chmod 600 {path}`.")
    return token
