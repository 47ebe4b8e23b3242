"""docs/benchmarks.md and the README's results, from the files that hold the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rtcontrol.bench.hand_kept import FILE, hand_kept
from rtcontrol.bench.readme import results_table, score_tables
from rtcontrol.bench.tables import tables
from rtcontrol.envs import registry
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.figure_table import NOT_MEASURED, Table, markdown

COMMAND = "rtcontrol bench all --again"
TITLES = {
    "decide": (
        "One decision",
        """All ways are sessions of one model. They take turns, and each decides the same situations. Each begins
with the tokens that its prompt shares with the tick before. The situations are an agent's own episodes at 16 Hz;
the instructions are its goals as they are written, and phrasings of them. Times run from text to typed call.

- *long*: 20 function names and three enums that branch at token depths 1, 3 and 6
  (`rtcontrol/bench/schemas/long.json`). This model was not trained for them and mostly calls functions without
  arguments. So a third run holds every way to a function with three arguments.
- *The floor*: the cheapest single forward that could decide the call. It has the uncached tokens and the nodes that
  this call's walk goes by.
- *JSON*: a call is forced to the tokens of the call that was decided, because a model trained for heads writes no
  JSON. One of five decisions is measured. A token scores the whole vocabulary; where the grammar leaves few tokens,
  only these.
- *simthinkd* answers another question: it picks one of 7 actions.""",
    ),
    "serving": (
        "Beside vLLM",
        """The same weights run in vLLM, in one process with ours. The ways take turns on the same prompts. Times
run from text to typed call.

- *SimpleTool's way*: vLLM as it comes, as SimpleTool's server uses it. Its core has processes of its own and
  128-token blocks. Each head has a text prompt, which vLLM tokenises, and strings at which it stops. One `generate`
  decides all heads. Its processes stand still while other ways take their turn, because one spins for a second
  after each call.
- *Its best form*: the core in this process, token ids, `stop_token_ids`, blocks of 32 tokens, no text, final
  outputs only.
- *JSON*: one call under vLLM's grammar of all calls, in the same form.
- *15 M*: random weights of 15 M parameters (hidden 384, 8 layers, 4,096 tokens). They decide by four heads whose
  values have 8 tokens, after prompts of 365 tokens of which the last 39 change. *Told apart by the last*: no token
  of a value is forced, and all are evaluated. *By the first*: the other seven must follow, and ours does not
  evaluate them.
- Random weights end no head. vLLM's head is ended behind the eighth token, and the closing tag, a ninth step, is
  given to it. Nothing constrains SimpleTool's heads, so random weights write no legal call.""",
    ),
    "chat": (
        "Chat models",
        """How many passes a chat model's call takes in its own syntax, on the bundled agents' tools and
situations. Beside it stands the same call token by token, and with the tokens skipped that the syntax or the tools
force ([chat.md](chat.md)). The weights are *random weights* of the bundled models' shape with Qwen's own tokenizer.
Any weights would take these passes; the milliseconds are those of these weights.""",
    ),
    "speculative": (
        "Drafts of free values",
        """What a draft saves for a value that no list holds. Without guesses each token is a pass. A guess, of
the prompt's text or of a smaller model's call, is verified as a chain of nodes in the same pass, and changes no
call. *Depth* is the number of its tokens a pass, as in the paper's appendix on speculative decoding (2, 3 and 4;
its 0.5 B model drafts for 14 B, 93.6 to 95.0 % accepted, 2.35 to 3.22 times fewer passes).

This shows the mechanism alone. Target and draft have *random weights* and are made to write given values. The draft
has another token in one of twenty places. A draft is made once a call, not after each pass, so nothing of it is of
use behind its first wrong token. Trained ST models of two sizes: not measured.""",
    ),
    "sizes": (
        "Sizes that people deploy",
        """*Random weights* of published shapes (Qwen2.5; a vocabulary of 4,096 tokens, which favours JSON).
Prompts have 365 tokens of which the last 39 change. Four heads have values of eight tokens that the last token
tells apart: no token is forced, and one pass evaluates all of them. The ways are those of *One decision*. *Without
graphs* is the same pass, sent to the GPU kernel by kernel. Hugging Face's `generate` waits here for its own Python
between tokens; the best of the other side is *forced tokens skipped*.""",
    ),
    "batch": ("Many decisions together", "The first trees of all sessions' decisions share a pass."),
    "heads": (
        "By number of heads",
        "The same number of values in all, shared out over 1 to 8 heads, as one packed pass and as a sequence a head.",
    ),
    "prefix": ("The prefix", "Opening a session and deciding, with the tools' tokens cached, on disk, or nowhere."),
    "memory": ("Memory", "Each case in a process of its own; what a stage adds to the one before (USS: not shared)."),
    "wire": (
        "The wire",
        "Observation out to call in, client-paced, loopback, servers in processes of their own; the ways take turns.",
    ),
    "load": ("Many clients", "Every tick's call is counted, those that never came, and the misses by cause."),
    "crowd": ("Crowds", "Many characters of one connection ([crowds.md](crowds.md))."),
    "dtype": ("bf16", "The same situations decided by fp32 and by bf16, packed, token by token and many together."),
    "pretrained": (
        "A pretrained model",
        """Gemma 3 270M of a GGUF file (`RTCONTROL_GEMMA`), whole and cut to its first layers, with untrained
heads: the times are those of a trained one, the calls are not. All ways and dtypes take turns in one process, each
right after a forward of its own weights that is not counted: else whoever comes second finds them in the caches.

- *One pass*: a whole decision, text to typed call.
- *Bare forward*: the same tokens behind the same cached ones through our layers, without masks and scores.
- *bf16*, *int8*: the products with the weights; norms, rotary embedding and attention stay fp32. int8 rounds each
  weight row, and each input row when it comes, by a scale of its own.
- Hugging Face's forward knows no int8.""",
    ),
    "equal": (
        "Equal to Hugging Face",
        """Tools and prompts are drawn by a seed, some longer than the model's window of 512 tokens. Our packed
calls stand beside those of transformers' model in fp32, which decodes each head alone, one token after another, under
the same legal tokens. The judge is code of its own: it lists values as tokens, and knows nothing of our tries, masks,
positions and caches. Free text is not drawn.""",
    ),
    "policy-drill": (
        "Faults of a policy server",
        """A run whose policy server does wrong on purpose, two good answers apart
([Policies](policies.md#the-drill)). *Acted*: calls of such an answer that acted, by the world's own account.""",
    ),
    "engines": (
        "The engines",
        "`torch`, `transformers` and `vllm` ([checkpoints.md](checkpoints.md)) decide the same situations in turns, in "
        "one process: that of an environment that has all three.",
    ),
}
DECISIONS = (
    *("decide", *(f"decide-{agent}" for agent in registry.agent_names()[1:])),
    *("serving", "chat", "speculative", "sizes", "batch", "heads"),
    *("prefix", "memory", "dtype", "pretrained", "equal", "engines"),
)
FILES = (*DECISIONS, "wire", "load", "crowd", "policy-drill")
# Of what no bench measures.
COMMANDS = {"policy-drill": "rtcontrol drill --policy"}
BEGIN, END = "<!-- results -->", "<!-- /results -->"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text("utf-8"))) if path.exists() else None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).", f"Delete it and run `{COMMAND}`.") from None


def machine(document: dict[str, Any]) -> str:
    """Where and when, in one line."""
    m = document["machine"]
    quick = "; a few decisions only, to see that it works" if document["quick"] else ""
    gpu = f"{m['gpu']}; " if "gpu" in m else ""
    return (
        f"{gpu}{m['cores']} cores of {m['cpu']}, {m['system']}, Python {m['python']}, torch {m['torch']}, "
        f"{document['measured']}, load at the start {m['load']}{quick}."
    )


def page(folder: Path) -> str:
    """The page of all files in the folder; what nobody measured is told."""
    parts = [
        "# Benchmarks",
        f"`rtcontrol bench tables` writes this page from the JSON files in `docs/{folder.name}/`. A test fails where "
        f"page and files differ. `{COMMAND}` measures everything anew on this machine and writes files and page. "
        "When it is interrupted, `rtcontrol bench all` goes on where it stopped. On a machine with a GPU it fills the "
        "GPU columns.",
        "Rows and tables that say *random weights* show how long a decision takes, and nothing about whether it is "
        "right. The CARLA stand-in is not CARLA.",
        "## Scores of the bundled models",
        "`rtcontrol score` ([scores.md](scores.md)). The cards in `models/zoo/` say what is judged. The driver is the "
        "model of the CARLA bridge, scored in `--env road`: neither was ever run in CARLA.",
        markdown(score_tables()),
    ]
    titled = ""
    for name in FILES:
        title, text = TITLES[name if name in TITLES else name.partition("-")[0]]
        if title != titled:
            parts += [f"## {title}", f"`{COMMANDS.get(name, f'rtcontrol bench {name}')}`. {text}"]
            titled = title
        document, gpu = _read(folder / f"{name}.json"), _read(folder / f"{name}-gpu.json")
        if document is None and gpu is not None:  # what is measured on a GPU alone
            parts += [markdown(tables(gpu)), machine(gpu)]
            continue
        if document is None:
            parts.append(f"{name}: {NOT_MEASURED}.")
            continue
        others = tables(gpu) if gpu else []
        shown = tables(document)
        parts.append(markdown([table.beside(_same(others, table), "GPU") if others else table for table in shown]))
        parts.append(machine(document) + (f" GPU: {machine(gpu)}" if gpu else f" GPU: {NOT_MEASURED}."))
    if entries := hand_kept(folder):
        parts += [
            "## Kept by hand",
            f"No bench writes these figures as JSON. They stand in `docs/{folder.name}/{FILE}`, each with its day, its "
            "machine and its command.",
            *(entry.markdown() for entry in entries.values()),
        ]
    return "\n\n".join(parts) + "\n"


def _same(found: list[Table], table: Table) -> Table | None:
    return next((one for one in found if one.title.partition(":")[0] == table.title.partition(":")[0]), None)


def with_table(readme: str, folder: Path) -> str:
    """The README's text with its six results as the files have them."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"README.md lacks {BEGIN} or {END}.", "Put both where the table is to stand.")
    return f"{before}{BEGIN}\n{results_table(folder)}\n{END}{after}"


def write(folder: Path) -> list[Path]:
    """Write the page beside the folder, and the table into the README above it, where there is one; gives what
    changed."""
    changed = []
    targets = {folder.with_suffix(".md"): page(folder)}
    readme = folder.parent.parent / "README.md"
    if readme.exists() and BEGIN in (text := readme.read_text("utf-8")):
        targets[readme] = with_table(text, folder)
    for path, text in targets.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            changed.append(path)
    return changed
