"""What `rtcontrol serve --http` is told: address, who may come in, and where further pages stand."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from rtcontrol.models.checkpoint.checkpoint import zoo
from rtcontrol.models.errors import UserError, read_text
from rtcontrol.run import assembly
from rtcontrol.serve.options import ServeOptions
from rtcontrol_client.wire.endpoint import host_port, is_loopback
from rtcontrol_client.wire.limits import LIMITS

TOKEN = re.compile(r"[A-Za-z0-9_.~-]{16,256}")
ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True)
class GatewayOptions:
    """Settings of the gateway; `of` makes them from the command line's.

    `origins` are the other sites whose pages may come in (`https://robot.example:8443`), `token` the secret that these
    and all other machines must show, and with `require_token` this one, too. `model` (None: the one that was trained on
    a request's tools) and `engine` decide the /v1 requests, of which the last `tool_sets` tool sets are kept open; a
    free value of theirs has at most `value_tokens` tokens.
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
    max_body_bytes: int = LIMITS.max_message_bytes
    body_timeout_s: float = 10.0
    decide_timeout_s: float = 10.0
    open_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.token is not None and not TOKEN.fullmatch(self.token):
            raise UserError(
                "The access token is no usable one.",
                "Use 16 to 256 letters, digits, and _ . ~ - (they travel in headers and addresses).",
            )
        if self.token is None and self.require_token:
            raise UserError("--require-token has no access token to ask for.", "Give one with `--token-file FILE`.")
        if self.token is None and not self.loopback:
            raise UserError(
                f"--http {self.host}:{self.port} can be reached from other machines, and has no access token.",
                "Give one with `--token-file FILE` (made, mode 600, where there is none yet), or bind 127.0.0.1.",
            )
        if self.token is None and self.origins:
            what = f"--allow-origin {min(self.origins)} lets pages of another site in, and there is no access token."
            raise UserError(what, "Give one with `--token-file FILE`, or serve the page from here with `--static DIR`.")
        if self.static is not None and not self.static.is_dir():
            raise UserError(f"--static {self.static} is no folder.", "Give the folder that holds the pages.")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @classmethod
    def of(cls, options: ServeOptions, http: str, token: str | None = None) -> GatewayOptions:
        """Return the settings for a server's options at `HOST:PORT`; a `token` wins over that of a file. UserError."""
        host, port = host_port(http)
        if not host or not port.isdigit() or not 0 <= int(port) < 65536:
            raise UserError(f"--http {http!r} is no HOST:PORT.", "Write for example 127.0.0.1:8080 or [::1]:8080.")
        if token is None and options.token_file is not None:
            token = read_token(options.token_file)
        # A bundled model is found by its tools, so that requests may bring another's.
        own = None if options.agent is None else assembly.agent(options.agent).model
        return cls(
            host=host,
            port=int(port),
            origins=frozenset(map(origin, options.allow_origin)),
            token=token,
            static=options.static,
            model=options.model or (None if own in zoo() else own),
            engine=options.engine,
            value_tokens=options.value_tokens,
            require_token=options.require_token,
        )


def origin(text: str) -> str:
    """An origin as browsers send it. UserError for anything else."""
    plain = text.lower().removesuffix("/")
    if not ORIGIN.fullmatch(plain):
        raise UserError(
            f"--allow-origin {text!r} is no origin.",
            "Write scheme, host and port only, such as https://robot.example:8443. There is no wildcard.",
        )
    return plain.removesuffix(":80" if plain.startswith("http:") else ":443")


def read_token(path: Path) -> str:
    """The token in a file; where there is no file, a new one is made that only its owner can read. UserError."""
    try:
        if not path.exists():
            made = secrets.token_urlsafe(32)
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(made + "\n")
            return made
        mode = path.stat().st_mode
        if mode & 0o077:
            raise UserError(f"--token-file {path} can be read by other users.", f"Run `chmod 600 {path}`.")
        token = read_text(path).strip()
    except OSError as error:
        raise UserError(
            f"--token-file {path} cannot be used ({type(error).__name__}).", "Give a file that you may read or make."
        ) from None
    if not token:
        raise UserError(f"--token-file {path} is empty.", "Remove it: a new token is made then.")
    return token
