"""Parse the addresses of ZeroMQ sockets, and check whether only this machine can reach an address."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from rtcontrol_client.wire.errors import RemedyError

ENDPOINT_FORMS = "tcp://ADDRESS:PORT, tcp://[IPV6]:PORT or ipc://PATH"
HTTP_SCHEMES = ("http://", "https://")  # these URLs return a server's address (docs/protocol.md, GET /connect)


class EndpointError(RemedyError):
    """Raised for a text that is not an endpoint."""


@dataclass(frozen=True)
class Endpoint:
    """A ZeroMQ address. Only tcp has a `host` (without brackets) and a `port` (a number, or * for any free port)."""

    scheme: str
    host: str = ""
    port: str = ""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse an address such as `tcp://127.0.0.1:5555` or `ipc://PATH`. Raises EndpointError."""
        scheme, _, rest = text.partition("://")
        if rest and scheme in ("ipc", "inproc"):
            return cls(scheme)
        # ZeroMQ allows a source address before the host: tcp://SOURCE;HOST:PORT.
        host, port = split_host_port(rest.split(";")[-1])
        numbered = port.isascii() and port.isdigit() and int(port) <= 65_535
        if scheme != "tcp" or not host or not (numbered or port == "*") or (":" in host and "[" not in rest):
            raise EndpointError(f"{text} is not an endpoint.", f"Write {ENDPOINT_FORMS}, such as tcp://127.0.0.1:5555.")
        return cls(scheme, host, port)

    @property
    def local(self) -> bool:
        """Return whether only this machine can reach the endpoint; False for a host name, an interface and `*`."""
        return self.scheme != "tcp" or is_loopback(self.host)

    @property
    def ipv6(self) -> bool | None:
        """Return whether the host is an IPv6 address, for which libzmq needs an option; None for a host name."""
        if ":" in self.host:
            return True
        return False if self.host in ("", "*") or is_address(self.host) else None

    @property
    def ipv6_only(self) -> bool:
        """Return whether the host has only IPv6 addresses; for a host name, query the system's resolver."""
        if self.ipv6 is not None:
            return self.ipv6
        try:
            families = {family for family, *_ in socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError):
            return False  # it may be a network interface; otherwise libzmq reports the error
        return socket.AF_INET6 in families and socket.AF_INET not in families


# The WebSocket subprotocol, and the prefix of a subprotocol that carries an access token.
SUBPROTOCOL = "rtcontrol.v1"
TOKEN_SUBPROTOCOL = "rtcontrol.token."


def check_client(text: str) -> None:
    """Raise EndpointError if `text` is neither an endpoint nor the URL of a /connect request."""
    if not text.startswith(HTTP_SCHEMES):
        Endpoint.parse(text)
        return
    try:
        url = urlsplit(text)
        usable = bool(url.hostname) and url.port != 0 and url.username is None
    except ValueError:
        usable = False
    if not usable or url.path in ("", "/") or not text.isascii() or not text.isprintable() or " " in text:
        raise EndpointError(f"{text} is not the URL of a server.", "Write http://HOST:PORT/connect.")


def split_host_port(text: str) -> tuple[str, str]:
    """Split `HOST:PORT` or `[IPV6]:PORT` into the host (without brackets) and the port, which may be empty."""
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, ""
    return host.removeprefix("[").removesuffix("]"), port


def is_local(text: str) -> bool:
    """Return whether `text` is an endpoint that only this machine can reach."""
    try:
        return Endpoint.parse(text).local
    except EndpointError:
        return False


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Return whether a host name or address (without brackets) always means this machine."""
    address = _address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return host.lower() == "localhost" or any(each is not None and each.is_loopback for each in (address, mapped))


def is_address(host: str) -> bool:
    """Return whether `host` is an IP address and not a name."""
    return _address(host) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
