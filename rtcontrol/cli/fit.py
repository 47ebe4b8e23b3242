"""The command `rtcontrol fit`, which trains a controller (a small model) for a user's tools."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import console_for_tables, group, resumable_training, save, say
from rtcontrol.models.errors import UserError
from rtcontrol.settings import MISSING, setting

WEEK = 7 * 24 * 60
app = group()


@command(app, ("out", "rows", "tools", "env", "agent", "base", "minutes"), figures=True)
def fit(
    line: CommandLine,
    out: Path = setting("fit", MISSING, "The model's folder: a new folder, or that of a training to resume."),
    rows: tuple[Path, ...] = setting("fit", (), "Training rows in a JSONL file; may be repeated."),
    tools: str | None = setting("fit", None, "A .json or .py file, mcp:COMMAND or mcp:URL. (default: the rows' tools)"),
    teacher: str | None = setting("fit", None, "Instead of rows: a FILE.py with two functions (docs/training.md)."),
    env: str | None = setting("fit", None, "Instead of rows: a world in a FILE.py, with --agent."),
    agent: str | None = setting("fit", None, "FILE.py of the agent for --env, with goals and an expert."),
    hz: float | None = setting("fit", None, "Decisions per second in the world. (default: 16)", ge=0.1, le=1000),
    base: str | None = setting("fit", None, "Continue from this checkpoint. (default: a new model)"),
    goal: str | None = setting("fit", None, "Instruction for rows without an instruction, and the model's default."),
    minutes: float = setting("fit", 15.0, "Time limit of the training in minutes.", ge=0.01, le=WEEK),
    seed: int = setting("fit", 0, "Seed of initial weights and of the order of rows.", ge=0, lt=1 << 63),
) -> None:
    """Train a controller on rows (instruction, observation, call), on a labelling function, or on a world's expert.

    A row is a line: `{"instruction": "...", "observation": "...", "call": {"name": "...", "arguments": {...}}}`. Rows
    that do not match the tools are rejected, with file and line. A tenth of the questions is held out from training:
    the score on these is printed, and the training ends when all are right. The same command resumes a training that
    was stopped. With more --minutes it continues a training that has ended.

    Examples (docs/training.md, docs/your-own-game.md):

        rtcontrol fit --tools tools.json --rows rows.jsonl --out runs/mine
        rtcontrol fit --set fit.teacher=my_rules.py --tools tools.json --out runs/mine
        rtcontrol fit --env my_game.py --agent my_game_agent.py --base base --out runs/mine
        rtcontrol run --env my_world.py --tools tools.json --instruct "go on" --model runs/mine   # then run it
    """
    from rtcontrol.run.user_files import load_module
    from rtcontrol.training.fit import TRAINING
    from rtcontrol.training.fit import fit as work

    console = console_for_tables(line.json)
    module = {} if teacher is None else vars(load_module(teacher, "fit.teacher"))
    if module and (lacks := [name for name in ("teacher", "situations") if name not in module]):
        hint = "Write `def teacher(instruction, observation)` and `def situations(rng)` (docs/training.md)."
        raise UserError(f"{teacher} has no function {' and no function '.join(lacks)}.", hint)
    with resumable_training(out, TRAINING):
        result = work(
            rows or None,
            module.get("tools") if tools is None else tools,
            out=out,
            teacher=module.get("teacher"),
            situations=module.get("situations"),
            base=base,
            env=env,
            agent=agent,
            hz=hz,
            goal=goal,
            minutes=minutes,
            seed=seed,
            say=partial(say, console),
        )
    say(console, f"Held-out rows: {result.score.message()}.")
    if (known := result.unfamiliar.get("unchanged")) is not None:
        say(console, f"Unfamiliar to the model are {known.right} of {known.count} held-out observations (held).")
    if (worst := result.truth.worst()) is not None:
        say(console, worst)
    if result.score.right < result.score.count:
        say(console, f"Not all answers are right: run the same command with --minutes {2 * minutes:g} to train longer.")
    say(console, f"Model: {result.folder} (card: {result.folder / 'README.md'})")
    unfamiliar = {name: [share.right, share.count] for name, share in result.unfamiliar.items()}
    figures = {**result.truth.to_dict(), "unfamiliar": unfamiliar, "notes": list(result.notes)}
    save(line.json, {"folder": str(result.folder), **figures})
