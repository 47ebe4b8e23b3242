"""A language model behind an OpenAI-compatible endpoint (`/v1/chat/completions`)."""

from __future__ import annotations

import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import check_call, declared
from rtcontrol.models.data.sample import HALF, Unusable
from rtcontrol.models.data.synthesis.tool_sets import ToolSet, nearest
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema
from rtcontrol.models.strict_json import strict_json
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


SYSTEM = (
    "You write training data for a model that calls functions. You are given functions and the call that is wanted, "
    "and write what users would say for it, in varied wording, length and situation. A request holds everything that "
    "its arguments say, as people say it; it does not name functions or parameters. Answer with one JSON object alone: "
    '{"rows": [{"instruction": "what the user says", "observation": "what is known besides, as a date, or \\"\\"", '
    '"call": {"name": "...", "arguments": {...}}}]}'
)
LONGEST = 4000  # characters of an instruction or an observation


@dataclass(frozen=True)
class RowsRequest:
    """One request: which of the tools is to be called, with how many arguments, and how many rows of it."""

    tools: ToolSet
    tool: ToolSchema
    arguments: int
    count: int

    def messages(self) -> list[dict[str, str]]:
        shown = "\n".join(one.canonical_json() for one in self.tools)
        if self.arguments > MAX_HEADS:
            said = "all of its arguments"
        elif self.arguments == 1:
            said = "exactly 1 argument"
        else:
            said = f"exactly {self.arguments} arguments" if self.arguments else "no arguments"
        told = f"Write {self.count} rows that call {self.tool.name} with {said}. No two may be alike."
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Functions:\n{shown}\n\n{told}"}]


def drawn(sets: Sequence[ToolSet], shares: dict[int, float], count: int, seed: int, n: int) -> RowsRequest:
    """The `n`-th request, the same one for a seed whenever it is asked. The number of arguments follows the shares as
    far as the tools have as many."""
    rng = Random(f"{seed}:{n}")
    wanted = rng.choices(list(shares), list(shares.values()))[0]
    tools = rng.choice(sets)
    tool, arguments = nearest(tools, wanted, rng)
    return RowsRequest(tools, tool, arguments, count)


def read_rows(text: str, tools: ToolSet) -> Iterator[tuple[str, str, Call] | Unusable]:
    """Of an answer its rows as (instruction, observation, call), or why one is none."""
    try:
        found = _json_in(text)
        rows = found["rows"] if isinstance(found, dict) else found
        if not isinstance(rows, list):
            raise Unusable("an answer without rows", text[:80])
    except (ValueError, RecursionError):
        yield Unusable("an answer that is no JSON", text[:80])
        return
    except (KeyError, Unusable):
        yield Unusable("an answer without rows", text[:80])
        return
    for row in rows:
        try:
            yield _row(row, {tool.name: tool for tool in tools})
        except Unusable as error:
            yield error


def _row(row: Any, tools: dict[str, ToolSchema]) -> tuple[str, str, Call]:
    shown = json.dumps(row, ensure_ascii=False)[:80]
    try:
        asked, known, call = row["instruction"], row.get("observation") or "", row["call"]
        name, arguments = call["name"], call["arguments"]
    except (LookupError, TypeError, AttributeError):
        raise Unusable("a row of another shape", shown) from None
    if not (
        isinstance(asked, str) and isinstance(known, str) and isinstance(name, str) and isinstance(arguments, dict)
    ):
        raise Unusable("a row of another shape", shown)
    if not asked.strip() or len(asked) > LONGEST or len(known) > LONGEST:
        raise Unusable("an instruction that is empty or too long", shown)
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unusable(HALF, json.dumps(row)[:80]) from None
    if name not in tools:
        raise Unusable("a call of a function that is not shown", shown)
    made = declared(Call(name, arguments), tools[name])
    check_call(made, tools[name])
    return asked.strip(), known.strip(), made


def _json_in(text: str) -> Any:
    """JSON, or JSON in a fenced block or behind a model's thinking."""
    body = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    if fenced := re.search(r"```(?:json)?\s*\n(.*?)```", body, flags=re.DOTALL):
        body = fenced[1].strip()
    return strict_json(body)
