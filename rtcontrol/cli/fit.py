"""The command `rtcontrol fit`, which trains a controller for a user's tools."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import Progress, for_people, group, interrupted, save, say
from rtcontrol.models.errors import UserError
from rtcontrol.settings import MISSING, setting

WEEK = 7 * 24 * 60
app = group()


@command(app, ("out", "rows", "tools", "env", "agent", "base", "minutes"), figures=True)
def fit(
    line: CommandLine,
    out: Path = setting("fit", MISSING, "The model's folder: a new one, or that of a run to resume."),
    rows: tuple[Path, ...] = setting("fit", (), "Rows to learn from, JSONL; may be repeated."),
    tools: str | None = setting("fit", None, "A .json or .py file, mcp:COMMAND or mcp:URL. (default: the rows' tools)"),
    teacher: str | None = setting("fit", None, "Instead of rows: a FILE.py with two functions (docs/training.md)."),
    env: str | None = setting("fit", None, "Instead of rows: a world, FILE.py, with --agent."),
    agent: str | None = setting("fit", None, "FILE.py of the agent for --env, with goals and an expert."),
    hz: float | None = setting("fit", None, "Decisions a second in the world. (default: 16)", ge=0.1, le=1000),
    base: str | None = setting("fit", None, "Continue from this checkpoint. (default: a new model)"),
    goal: str | None = setting("fit", None, "Instruction of rows that have none; the model's default instruction."),
    minutes: float = setting("fit", 15.0, "Longest training time.", ge=0.01, le=WEEK),
    seed: int = setting("fit", 0, "Seed of weights and order.", ge=0, lt=1 << 63),
) -> None:
    """Fit a controller to rows (instruction, observation, call), to a labelling function, or to a world's expert.

    One row a line: `{"instruction": "...", "observation": "...", "call": {"name": "...", "arguments": {...}}}`. Rows
    that do not fit the tools are refused by file and line. A tenth of the questions is held out from training: its
    score is shown, and the training ends when all of them are right. The same command resumes a training that was
    stopped; more --minutes continue one that ended.

    Examples (docs/training.md, docs/your-own-game.md):

        rtcontrol fit --tools tools.json --rows rows.jsonl --out runs/mine
        rtcontrol fit --set fit.teacher=my_rules.py --tools tools.json --out runs/mine
        rtcontrol fit --env my_game.py --agent my_game_agent.py --base base --out runs/mine
        rtcontrol run --env my_world.py --tools tools.json --instruct "go on" --model runs/mine   # then run it
    """
    from rtcontrol.run.user_files import load_module
    from rtcontrol.training.fit import TRAINING
    from rtcontrol.training.fit import fit as work

    console = for_people(line.json)
    module = {} if teacher is None else vars(load_module(teacher, "fit.teacher"))
    if module and (lacks := [name for name in ("teacher", "situations") if name not in module]):
        hint = "Write `def teacher(instruction, observation)` and `def situations(rng)` (docs/training.md)."
        raise UserError(f"{teacher} has no {' and no '.join(lacks)}.", hint)
    with FitProgress("") as progress, interrupted(out, TRAINING):
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
            tell=progress.tell,
            say=partial(say, console),
        )
    say(console, f"Held-out rows: {result.score.message()}.")
    if (worst := result.truth.worst()) is not None:
        say(console, worst)
    if result.score.right < result.score.count:
        say(console, f"Not all answers are right yet: the same command with --minutes {2 * minutes:g} continues.")
    say(console, f"Model: {result.folder} (card: {result.folder / 'README.md'})")
    save(line.json, {"folder": str(result.folder), **result.truth.to_dict(), "notes": list(result.notes)})


class FitProgress(Progress):
    """A progress display with the time left, the newest held-out score and the loss."""

    score = "-"

    def tell(self, line: Mapping[str, Any]) -> None:
        """Show a report line of the training."""
        if (score := line.get("held_out")) is not None:
            self.score = f"{score['right']}/{score['count']}"
        left, spent = int(line["left_s"]), line["seconds"]
        text = f"{left // 60}:{left % 60:02d} left  held out {self.score}  loss {line['loss']}"
        self.show(f"{text}  {line['samples']:,} samples", spent, spent + line["left_s"])
