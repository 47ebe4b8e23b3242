"""Tests that the Python examples and commands of the documentation work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from commands import call, refused, unknown_options

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from tests.helpers.processes import ROOT, python

# Pages with examples, and the output of these examples.
PAGES = {"README.md": "drive(speed=40)", "docs/tutorial.md": "engines(", "docs/python.md": "Bundled: base, driver"}
ONE_AFTER_THE_OTHER = """
import json, sys
for page, code in json.loads(sys.argv[1]).items():
    print(f"<{page}>", flush=True)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
"""


def examples(page: str) -> str:
    return "".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL))


def test_examples_on_documentation_pages_run(tmp_path: Path) -> None:
    code = {page: examples(page) for page in PAGES}
    # What it prints is learnt by then, on a busy machine too.
    assert "minutes=1)" in code["README.md"]
    code["README.md"] = code["README.md"].replace("minutes=1)", "minutes=0.4)")
    ran = python("-c", ONE_AFTER_THE_OTHER, json.dumps(code), cwd=tmp_path, timeout=280)
    assert ran.returncode == 0, ran.stderr
    for page, says in PAGES.items():
        assert says in ran.stdout.partition(f"<{page}>")[2].partition("\n<")[0], page


def test_ci_runs_the_readmes_test_command() -> None:
    commands = re.findall(r"```sh\n(python3 .*?)\n```", (ROOT / "README.md").read_text("utf-8"))
    assert len(commands) == 2 and all("\n" not in command for command in commands)
    steps = commands[1].partition(" && . .venv/bin/activate && ")[2]
    assert steps.endswith("&& pytest -q")
    assert steps in (ROOT / ".ci/run").read_text("utf-8")


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("*.md")))
def test_links_of_top_level_pages_exist(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text("utf-8"))
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def commands_of(page: Path) -> list[list[str]]:
    """Return the words of each `rtcontrol` command in the code blocks of a page."""
    text = page.read_text("utf-8")
    lines = [line for block in re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    lines += re.findall(r"^    (rtcontrol .*)$", text, re.MULTILINE)
    found = []
    for line in lines:
        for part in re.split(r" (?:&&|\|) | &(?: |$)", line.partition(" # ")[0].partition("  #")[0]):
            if re.match(r"(?:[\w/]+/bin/)?rtcontrol ", part):
                found.append(shlex.split(part)[1:])
    return found


def test_observations_of_examples_are_as_in_training() -> None:
    lander = TrainingMetadata.load(ZOO / "lander")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    texts = [text for page in pages for text in re.findall(r'"(x -?\d[^"{]* legs [^"]*)"', page.read_text("utf-8"))]
    assert lander is not None and len(texts) >= 4
    assert all(lander.unfamiliar(text) == () for text in texts)
    assert lander.unfamiliar("x 0.10 y 0.90 vx 0.00 vy -0.20 angle 0.00 spin 0.00 legs 0 0")
    assert lander.unfamiliar("x 10 y 90 vx 0 vy -20") and lander.unfamiliar("hello") and lander.unfamiliar("")


SKILL = ".agents/skills/make-my-game-playable/SKILL.md"


@pytest.mark.parametrize(
    "page", ["README.md", SKILL, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
)
def test_commands_of_a_page_have_their_options(page: str) -> None:
    for words in commands_of(ROOT / page):
        unknown = unknown_options(words)
        assert not unknown, f"{page}: {', '.join(sorted(unknown))} in {' '.join(words)}"


GAME = (ROOT / "docs/your-own-game.md").read_text("utf-8")
# The page's commands: those that begin, those that take minutes, and those for a Gymnasium world.
BEGINS, _, GYM = re.findall(r"```sh\n(.*?)```", GAME, re.DOTALL)
*PARTS, POLE = re.findall(r"```(?:python|yaml)\n(.*?)```", GAME, re.DOTALL)


def follow(commands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands that a reader would type, in this process if possible."""
    for line in commands.splitlines():
        program, *words = shlex.split(line, comments=True)
        if program == "cd":
            monkeypatch.chdir(*words)
        elif program == "rtcontrol":
            assert call(*words) == 0, line
        else:
            ran = python("-m", program, *words)
            assert ran.returncode == 0, ran.stdout + ran.stderr
            print(ran.stdout)


def test_new_game_runs_by_its_documented_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pole.py").write_text(POLE)
    monkeypatch.chdir(tmp_path)
    follow(BEGINS + GYM.replace("pole.py", "../pole.py"), monkeypatch)
    said = capsys.readouterr().out
    assert "16 passed" in said and "5 of 5 succeeded" in said and "2 of 2 succeeded" in said
    own = "".join((tmp_path / "rover" / name).read_text() for name in ("rover.py", "rover_agent.py", "goals.yaml"))
    assert sum(bool(line.strip()) for line in own.splitlines()) < 60
    for part in PARTS:
        assert part in own or "@tool" in part, part
    # The tools as functions fly like the definitions that they stand for.
    (functions,) = (part for part in PARTS if "@tool" in part)
    agent = tmp_path / "rover" / "rover_agent.py"
    agent.write_text(re.sub(r"SIGN = .*\ntools = .*\n", lambda found: functions, agent.read_text()))
    assert functions in agent.read_text()
    options = ("--clock", "lockstep", "--episodes", "2", "--model", "expert", "--host", "inprocess")
    options += ("--env", str(agent.with_name("rover.py")), "--agent", str(agent), "--out", str(tmp_path / "run"))
    capsys.readouterr()
    assert call("run", *options) == 0
    assert "2 of 2 succeeded" in capsys.readouterr().out


def test_new_game_is_complete_and_overwrites_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("new", str(tmp_path / "deep" / "my_game")) == 0
    written = sorted(path.name for path in (tmp_path / "deep" / "my_game").iterdir())
    assert (tmp_path / "deep" / "my_game").stat().st_mode == (tmp_path / "deep").stat().st_mode
    assert written == ["README.md", "goals.yaml", "my_game.py", "my_game_agent.py", "test_my_game.py"]
    capsys.readouterr()
    assert "File exists" in refused(capsys, "new", str(tmp_path / "deep" / "my_game"))
    for name, says in (
        ("My-Game", "is not a valid name"),
        ("class", "is not a valid name"),
        ("json", "would be imported in place"),
    ):
        assert says in refused(capsys, "new", str(tmp_path / name))
    assert "cannot be written" in refused(capsys, "new", str(tmp_path / ("a" * 300)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep"]
