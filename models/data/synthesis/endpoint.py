"""A language model behind an OpenAI-compatible endpoint (`/v1/chat/completions`)."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from rtcontrol.models.errors import UserError
from rtcontrol.models.web import WebAnswer, WebClient, WebError

ROUTE = "/chat/completions"
LOCAL = ("localhost", "127.0.0.1", "::1")
AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LONGEST_PAUSE_S = 60.0
MOST_CONNECTIONS = 100


@dataclass(frozen=True)
class ChatAnswer:
    """What was said, and the tokens that the endpoint counted (0 where it does not say)."""

    text: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class EndpointOptions:
    """`url` up to /v1, or the route itself; `key_variable` names the variable of the environment that holds the key.
    What fails for a while is tried again `retries` times, after twice the pause each time, or after what the endpoint
    asks for."""

    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    timeout_s: float = 120.0
    retries: int = 5
    pause_s: float = 1.0
    temperature: float = 1.0
    sleep: Callable[[float], object] | None = field(default=None, repr=False)


class ChatEndpoint:
    """Asks, one request at a time a thread; a context manager."""

    def __init__(self, options: EndpointOptions) -> None:
        self._options, self._stopped = options, threading.Event()
        parts = urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise UserError(f"{options.url!r} is no endpoint.", "Write https://HOST/v1; the key is no part of it.")
        path = parts.path.rstrip("/")
        self.url = parts._replace(path=path if path.endswith(ROUTE) else f"{path or '/v1'}{ROUTE}").geturl()
        headers = {}
        if key := os.environ.get(options.key_variable):
            if parts.scheme == "http" and parts.hostname not in LOCAL:
                raise UserError(
                    f"{options.key_variable} would travel to {parts.hostname} in the clear.",
                    "Use https, or unset it where none is needed.",
                )
            if not (key.isascii() and key.isprintable() and " " not in key):
                raise UserError(
                    f"{options.key_variable} is no key: no header takes it.", "Look at its spaces and ends."
                )
            headers["authorization"] = f"Bearer {key}"
        self._web = WebClient(self.url, headers, connections=MOST_CONNECTIONS)

    def ask(self, messages: Sequence[Mapping[str, str]], seed: int) -> ChatAnswer:
        """One answer. Raises UserError for what trying again does not mend, and after the last try."""
        body = {
            "model": self._options.model,
            "messages": list(messages),
            "temperature": self._options.temperature,
            "seed": seed,
        }
        said = ""
        for tried in range(self._options.retries + 1):
            if tried:
                (self._options.sleep or self._stopped.wait)(self._pause(tried, said))
            if self._stopped.is_set():
                raise UserError(f"{self.url} was left.", "Run the same command again: what is done is kept.")
            try:
                answer = self._web.post(body, self._options.timeout_s).result()
            except WebError as error:
                said, why = "", str(error)
                if error.loss == "malformed":
                    raise UserError(f"{self.url}: {why}.", "Look at the URL.") from None
                continue
            except CancelledError:
                continue  # it was left
            if answer.status == 200:
                return self._read(answer)
            said, why = answer.headers.get("retry-after", ""), f"HTTP {answer.status}: {_message(answer)}"
            if answer.status not in AGAIN:
                raise UserError(f"{self.url}: {why}.", self._remedy(answer.status))
        raise UserError(
            f"{self.url} gave no answer in {self._options.retries + 1} tries ({why}).",
            "Run the same command later: what is done is kept.",
        )

    def _pause(self, tried: int, asked_for: str) -> float:
        doubled = min(self._options.pause_s * 2 ** (tried - 1), LONGEST_PAUSE_S) * random.uniform(0.8, 1.2)
        try:
            return min(max(doubled, float(asked_for)), LONGEST_PAUSE_S)
        except ValueError:
            return doubled

    def _read(self, answer: WebAnswer) -> ChatAnswer:
        try:
            found = answer.json()
            text = found["choices"][0]["message"]["content"]
            usage = found.get("usage") or {}
            counts = [int(usage.get(f"{kind}_tokens") or 0) for kind in ("prompt", "completion")]
            return ChatAnswer(text if isinstance(text, str) else "", *counts)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(
                f"{self.url} answers, and not as a chat endpoint does: {answer.text[:120]!r}.", "Look at the URL."
            ) from None

    def _remedy(self, status: int) -> str:
        if status in (401, 403):
            return f"Put a key that it takes into the environment, as {self._options.key_variable}."
        return "Look at the URL and --model." if status == 404 else "Look at what it says."

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stopped.set()  # nobody waits for what is tried again
        self._web.close()


def _message(answer: WebAnswer) -> str:
    try:
        found = answer.json()["error"]
        return str(found["message"] if isinstance(found, Mapping) else found)[:200]
    except (ValueError, LookupError, TypeError):
        return answer.text[:200].strip() or "nothing said"
