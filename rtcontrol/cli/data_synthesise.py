"""`rtcontrol data synthesise`: rows made up, by templates or by a language model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtcontrol.cli.figures import JsonFile, check_writable, count_rows, for_people, save, say
from rtcontrol.models.errors import UserError

if TYPE_CHECKING:
    from rtcontrol.models.data.synthesis.tool_sets import ToolSet


def synthesise(
    tools: Annotated[Path, typer.Option(help="A .json file of tools, or a .jsonl file of rows whose tools are taken.")],
    rows: Annotated[int, typer.Option(min=1, help="How many rows.")],
    out: Annotated[Path, typer.Option(help="Where they go, one JSON object a line.", callback=check_writable)],
    templates: Annotated[bool, typer.Option("--templates", help="By templates, without a model.")] = False,
    endpoint: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible endpoint, as https://HOST/v1.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Its model's name.", show_default=False)] = None,
    key_env: Annotated[
        str, typer.Option("--key-env", help="Variable of the environment with its key.")
    ] = "OPENAI_API_KEY",
    balance: Annotated[
        str, typer.Option(help="Shares of calls with 1 to 6 arguments (or 0 to 6), as far as the tools have them.")
    ] = "18,20,18,17,15,12",
    per_request: Annotated[int, typer.Option(min=1, max=64, help="Rows that a request asks for.")] = 8,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Requests at a time.")] = 4,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Of the model's sampling.")] = 1.0,
    retries: Annotated[
        int, typer.Option(min=0, help="Times that a request is tried again, each after twice as long.")
    ] = 5,
    price_in: Annotated[float, typer.Option(min=0.0, help="Of a million tokens of prompt.")] = 0.0,
    price_out: Annotated[float, typer.Option(min=0.0, help="Of a million tokens of answer.")] = 0.0,
    max_cost: Annotated[float, typer.Option(min=0.0, help="Above it no more is asked. (0: no bound)")] = 0.0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json for the estimate. (default: 4 characters a token)")
    ] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Say what it will cost, and ask nothing.")] = False,
    seed: Annotated[int, typer.Option(help="Draws tools, numbers of arguments and values.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Rows made up for given tools: by a language model (each answer checked against the tools, each row once, what is
    refused counted with its reason), or by templates (plain sentences, values drawn).

    Answers are kept in OUT.answers until all rows are there: the same command goes on where it was, whatever ended it.

    Examples:

      rtcontrol data synthesise --templates --tools tools.json --rows 2000 --out made.jsonl

      rtcontrol data synthesise --tools train.jsonl --rows 70000 --endpoint https://HOST/v1 --model NAME
      --price-in 0.2 --price-out 0.6 --estimate --out made.jsonl

      rtcontrol data synthesise --tools train.jsonl --rows 70000 --endpoint https://HOST/v1 --model NAME
      --price-in 0.2 --price-out 0.6 --max-cost 20 --out made.jsonl
    """
    from rtcontrol.models.data.row import write_rows
    from rtcontrol.models.data.stats import PAPER, Tally, shares_of
    from rtcontrol.models.data.synthesis.endpoint import ChatEndpoint, EndpointOptions
    from rtcontrol.models.data.synthesis.ledger import Ledger, Prices, characters
    from rtcontrol.models.data.synthesis.ledger import estimate as estimated
    from rtcontrol.models.data.synthesis.synthesise import Spent, SynthesisOptions
    from rtcontrol.models.data.synthesis.synthesise import synthesise as asked
    from rtcontrol.models.data.synthesis.templates import rows as by_templates
    from rtcontrol.models.data.synthesis.tool_sets import read_tools

    if templates == (endpoint is not None):
        raise UserError(
            "Who makes the rows up was not said.", "Give either --templates or --endpoint URL --model NAME."
        )
    sets, tally, console = read_tools(tools), Tally(), for_people(json_file)
    balance = PAPER if balance == "paper" else balance
    shares, figures = shares_of(balance), dict[str, Any]()
    if endpoint is None:
        count = write_rows(out, count_rows(by_templates(sets, rows, seed, tally, balance)))
    else:
        if not model:
            raise UserError("--endpoint without --model.", "Name the model that is to be asked.")
        prices, spent = Prices(price_in, price_out), Spent()
        options = SynthesisOptions(rows, shares, per_request, parallel, seed, f"synthetic:{model}", prices, max_cost)
        ledger = Ledger(out, _made_by(sets, model, balance, per_request, temperature, seed))
        left = max(rows - per_request * len(ledger.entries), 0)
        tokens_of = _tokens_of(tokenizer) if tokenizer else characters
        found = estimated(sets, shares, left, per_request, seed, prices, tokens_of)
        console.print(
            f"{found.requests} requests, about {found.prompt_tokens:,} tokens of prompts and "
            f"{found.completion_tokens:,} of answers: {found.cost:.2f}"
            + (f" ({len(ledger.entries)} answers are there already)" if ledger.entries else ""),
            highlight=False,
        )
        figures["estimate"] = vars(found)
        if max_cost and found.cost > max_cost:
            raise UserError(
                f"It would cost about {found.cost:.2f}, and --max-cost is {max_cost:.2f}.",
                "Raise it, or ask for fewer.",
            )
        if estimate:
            save(json_file, figures)
            return
        asking = EndpointOptions(endpoint, model, key_env, retries=retries, temperature=temperature)
        with ChatEndpoint(asking) as chat:
            count = write_rows(out, count_rows(asked(sets, chat.ask, options, ledger, tally, spent)))
        ledger.remove()
        figures["spent"] = spent.to_dict(prices)
        console.print(f"Spent: {figures['spent']['cost']:.2f} in {spent.requests} requests", highlight=False)
    for (_, reason), refused in tally.dropped.most_common():
        console.print(f"{refused} refused: {reason}", highlight=False)
    if missing := _without_rows(sets, out)[:8]:
        why = "calls without arguments have a share where --balance has seven"
        say(console, f"no row calls {', '.join(missing)} ({why})")
    say(console, f"{count} rows: {out}")
    save(json_file, {**figures, "out": str(out), "rows_written": count, **tally.to_dict()})


def _without_rows(sets: list[ToolSet], out: Path) -> list[str]:
    """The tools that no row calls."""
    from rtcontrol.models.data.row import read_rows

    called = {row.call.name for row in read_rows(out) if row.call}
    return sorted({tool.name for tools in sets for tool in tools} - called)


def _made_by(sets: list[ToolSet], model: str, balance: str, per_request: int, temperature: float, seed: int) -> Any:
    """What must be the same for answers to be those of this run."""
    text = json.dumps([[tool.canonical_json() for tool in tools] for tools in sets])
    return {
        "tools": hashlib.sha256(text.encode()).hexdigest(),
        "model": model,
        "balance": balance,
        "per-request": per_request,
        "temperature": temperature,
        "seed": seed,
    }


def _tokens_of(path: Path) -> Any:
    from rtcontrol.models.data.stats import Tokens

    return Tokens(path).of
