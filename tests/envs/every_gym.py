"""`python -m tests.envs.every_gym FOLDER [--only=MODULE] [--write]`: every id of the Gymnasium packages of this Python,
checked as `rtcontrol check gym:ID --steps 20` does it, each in a process of its own that has imported none of them.

FOLDER keeps what is done: an interrupted run goes on there. `--write` puts the table into docs/your-own-game.md.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/your-own-game.md"
BEGIN, END = "<!-- tests.envs.every_gym: begin -->\n", "<!-- tests.envs.every_gym: end -->\n"
PACKAGES = {
    "gymnasium": "gymnasium", "gymnasium_robotics": "gymnasium-robotics", "minigrid": "minigrid",
    "highway_env": "highway-env", "ale_py": "ale-py",
}  # fmt: skip
BESIDE = ("mujoco", "box2d", "pygame-ce", "numpy")
STEPS = 20
LIMIT_S = 180.0  # some of BabyAI's rooms are drawn until one can be solved
# What may be found wrong, and what a reader is told of it. Whatever else is found is a fault, of ours or of theirs.
KINDS = {
    r"an observation is an image": "an image is seen (96 x 96 and more)",
    r"mujoco_py": "needs mujoco-py, which is no longer kept: newer versions fly",
    r"only supported on .?mujoco<3": "needs mujoco below 3 (Pusher-v4; Pusher-v5 flies)",
    r"assert joint_type in .*, mujoco_utils\.py": "fails an assertion of its own with mujoco above 3.11",
    r"No module named 'jax'": "needs jax, which was not installed",
    r"shimmy\[gym": "needs shimmy, which was not installed",
    r"No such file or directory: .*wfc/patterns": "its wheel lacks the pictures that it reads",
    r"gave \d+ numbers, .* as its reward": "gives a reward for each car, which Gymnasium does not allow",
}
FLIES = "made, reset, stepped and closed"


def versions() -> dict[str, str]:
    """Of the packages that are installed, and of what they stand on."""
    found = {}
    for name in (*PACKAGES.values(), *BESIDE):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def code() -> str:
    """What was tried: another version of these, or of the packages, is tried anew."""
    files = [*sorted((ROOT / "envs").glob("*.py")), ROOT / "rtcontrol/run/check.py"]
    text = json.dumps(versions()).encode() + b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(text).hexdigest()[:12]


def apart(function: Callable[..., Any], *given: Any, limit_s: float = LIMIT_S) -> Any:
    """What the function gives, in a process that is forked for it alone; a text where it gave nothing."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        with tempfile.TemporaryDirectory() as folder:  # MuJoCo leaves a log where it is
            os.chdir(folder)
            theirs.send(function(*given))

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(limit_s) else f"took longer than {limit_s:g} s"
    except EOFError:
        process.join()
        found = f"ended its process ({process.exitcode})"
    process.kill()
    process.join()
    return found


def listed() -> dict[str, str]:
    """Each id that the installed packages register, and the package that makes it."""
    import gymnasium

    for module in PACKAGES:
        with suppress(ModuleNotFoundError):
            __import__(module)
    found = {}
    for one in gymnasium.registry.values():
        made = one.entry_point or one.vector_entry_point
        found[one.id] = (made if isinstance(made, str) else made.__module__).partition(".")[0]
    return found


def tried(name: str) -> dict[str, Any]:
    """What is found wrong with it, how often it was made, and how often closed."""
    warnings.simplefilter("ignore")
    from rtcontrol.envs import gym
    from rtcontrol.run.world_check import check_world

    made, closed, make = [], [], gym.make

    def counted(*given: Any) -> Any:
        made.append(env := make(*given))
        close = env.close
        env.close = lambda: (closed.append(env), close())
        return env

    gym.make = counted
    try:
        found = [[one.what, one.remedy] for one in check_world(name, steps=STEPS)]
    except BaseException as error:  # check_world raises for nobody's mistake
        found = [[f"raised {type(error).__name__}: {error}", ""]]
    return {"found": found, "made": len(made), "closed": len(closed)}


def names(ids: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What is tried of each package: its ids, those of ALE with their games' memory, too."""
    for one, package in ids.items():
        yield f"gym:{one}", package
        if package == "ale_py":
            yield f"gym:{one}?obs_type=ram", package


def results(folder: Path, only: str | None = None, jobs: int | None = None) -> list[dict[str, Any]]:
    """Of every name (of one package); what the folder has of the same code and versions is not tried again."""
    import rtcontrol.run.check  # noqa: F401 (once, for all that is forked from here)

    ids = apart(listed)
    assert isinstance(ids, dict), ids
    wanted = [(name, package) for name, package in names(ids) if only in (None, package)]
    folder.mkdir(parents=True, exist_ok=True)
    file, of = folder / "results.jsonl", code()
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    done = {one["name"]: one for one in map(json.loads, filter(None, lines)) if one["of"] == of}
    left = [pair for pair in wanted if pair[0] not in done]

    def run(pair: tuple[str, str]) -> dict[str, Any]:
        told = apart(tried, pair[0])
        told = {"found": [[told, ""]], "made": 0, "closed": 0} if isinstance(told, str) else told
        return {"name": pair[0], "package": pair[1], "of": of, **told}

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool, file.open("a", encoding="utf-8") as kept:
        for one in pool.map(run, left):
            kept.write(json.dumps(one) + "\n")
            kept.flush()
            done[one["name"]] = one
            print(f"{len(done)} of {len(wanted)}  {one['name']}: {outcome(one)[:90]}", flush=True)
    return [done[name] for name, _ in wanted]


def outcome(one: dict[str, Any]) -> str:
    """What a reader is told of it: one of KINDS, FLIES, or a fault as it was told."""
    told = [what for what, _ in one["found"]]
    kinds = {next((words for like, words in KINDS.items() if re.search(like, what)), what) for what in told}
    return "; ".join(sorted(kinds)) or FLIES


def faults(found: Iterable[dict[str, Any]]) -> list[str]:
    """What nobody knows of, and worlds that were not closed as often as they were made."""
    wrong = []
    for one in found:
        if (said := outcome(one)) not in (FLIES, *KINDS.values()):
            wrong.append(f"{one['name']}: {said}")
        if one["made"] != one["closed"] or one["made"] > 1 or (said == FLIES and not one["made"]):
            wrong.append(f"{one['name']}: made {one['made']} times, closed {one['closed']} times")
    return wrong


def table(found: Iterable[dict[str, Any]]) -> str:
    """A row for each package and kind of outcome."""
    installed = versions()
    counted = Counter((one["package"], one["name"].partition("?")[2], outcome(one)) for one in found)
    order = list(PACKAGES)
    rows = ["| package | ids | |", "|---|---|---|"]

    def place(one: tuple[tuple[str, str, str], int]) -> tuple[int, str, bool, int]:
        (package, query, said), count = one
        return order.index(package), query, said != FLIES, -count

    for (package, query, said), count in sorted(counted.items(), key=place):
        name = PACKAGES[package]
        rows.append(f"| {name} {installed[name]} | {count} | {f'`?{query}`: ' if query else ''}{said} |")
    beside = ", ".join(f"{name} {installed[name]}" for name in BESIDE if name in installed)
    return "\n".join([*rows, "", f"With {beside}.", ""])


def written() -> str:
    """The table of the page."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


def main(folder: str, *options: str) -> int:
    """Gives 1 where there are faults."""
    only = next((one.removeprefix("--only=") for one in options if one.startswith("--only=")), None)
    found = results(Path(folder), only)
    (Path(folder) / "table.md").write_text(shown := table(found), "utf-8")
    print(shown, *(wrong := faults(found)), sep="\n")
    if "--write" in options:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        assert END in rest, f"{PAGE} lacks {BEGIN} or {END}"
        PAGE.write_text(before + BEGIN + shown + END + rest.partition(END)[2], "utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
