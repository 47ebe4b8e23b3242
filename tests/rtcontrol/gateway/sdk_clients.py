"""What agent SDKs make of a server: `python sdk_clients.py NAME URL` prints a JSON object. Each has its own needs of
`openai`, so each runs in an environment of its own."""

import json
import sys
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel


class Turn(BaseModel):
    """Turn the car."""

    direction: Literal["left", "right"]
    hard: bool


SAID = "Turn left."


def pydantic_ai(url: str) -> dict[str, Any]:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    model = OpenAIChatModel("default", provider=OpenAIProvider(base_url=url, api_key="none"))
    called: list[str] = []

    def lamp(to: Literal["on"]) -> str:
        """Light the lamp."""
        called.append(to)
        return "It is lit."

    found = {}
    kinds: dict[str, Any] = {"text": str, "tool": Turn, "native": NativeOutput(Turn)}
    for kind, output in kinds.items():
        called.clear()
        agent: Any = Agent(model, output_type=output, tools=[lamp])
        run = agent.run_sync(SAID, usage_limits=UsageLimits(request_limit=6))
        found[kind] = [type(run.output).__name__, len(called)]
    return found


def langchain(url: str) -> dict[str, Any]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="default", base_url=url, api_key="none")
    ways: dict[str, dict[str, Any]] = {
        "default": {},
        "strict": {"strict": True},
        "function": {"method": "function_calling"},
    }
    found = {way: type(model.with_structured_output(Turn, **o).invoke(SAID)).__name__ for way, o in ways.items()}
    (streamed,) = model.with_structured_output(Turn).stream(SAID)
    (call,) = model.bind_tools([Turn]).invoke(SAID).tool_calls
    return {**found, "streamed": type(streamed).__name__, "bound": call["name"]}


def instructor(url: str) -> dict[str, Any]:
    import instructor as library
    import openai

    found = {}
    for mode in (None, "TOOLS_STRICT", "JSON_SCHEMA", "PARALLEL_TOOLS"):
        options: Any = {} if mode is None else {"mode": library.Mode[mode]}
        client: Any = library.from_openai(openai.OpenAI(base_url=url, api_key="none"), **options)
        wanted: Any = Iterable[Turn] if mode == "PARALLEL_TOOLS" else Turn
        said = [{"role": "user", "content": SAID}]
        made = client.chat.completions.create(model="default", response_model=wanted, messages=said, max_retries=0)
        found[mode or "default"] = type(next(iter(made)) if mode == "PARALLEL_TOOLS" else made).__name__
    return found


if __name__ == "__main__":
    told = {"pydanticai": pydantic_ai, "langchain": langchain, "instructor": instructor}[sys.argv[1]](sys.argv[2])
    print(json.dumps(told))
