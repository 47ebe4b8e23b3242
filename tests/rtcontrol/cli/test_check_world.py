"""`rtcontrol check`: a world's author is told all that is wrong with it, and by a status that scripts can use."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import call

import rtcontrol
from rtcontrol.loop import errors

WORLD = """
import gymnasium, numpy
from gymnasium import spaces

class {name}(gymnasium.Env):
    metadata = {{"render_fps": 20, "render_modes": []}}
    observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Discrete(2)
    def __init__(self):
        print("made", flush=True)
    def seen(self):
        return numpy.array([1, 2], numpy.float32)
    def reset(self, *, seed=None, options=None):
        return self.seen(), {{}}
    def step(self, action):
        return self.seen(), 1.0, False, False, {{}}
    def close(self):
        print("closed", flush=True)
    {broken}

gymnasium.register("{name}-v0", entry_point={name})
"""
BROKEN = {
    "Sound": ("pass", []),
    "Nan": (
        "def seen(self): return numpy.array([1, numpy.nan], numpy.float32)",
        ["o2 is NaN, which is no number. Let its observation have a number there.\n"],
    ),
    "Wide": ("def seen(self): return numpy.zeros(3, numpy.float32)", ["the shape (3,), where its space has (2,)"]),
    "Loose": (
        "def step(self, action): return self.seen(), None, False, False, {}",
        ["Loose.step() gave None as its reward"],
    ),
    "Stuck": ("def step(self, action): raise OSError('motor bus')", ["step() raised OSError: motor bus"]),
    "Drawn": (
        "def seen(self): return numpy.random.random(2).astype(numpy.float32)",
        ["two resets to the seed 0 are not the same"],
    ),
    "Kept": ("def close(self): print('closed', flush=True); raise OSError('port')", ["failed in its close()"]),
    "Both": (
        "def seen(self): return numpy.random.random(2).astype(numpy.float32)\n"
        "    def step(self, action): raise OSError('motor bus')",
        ["two resets to the seed 0", "step() raised OSError: motor bus"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_all_that_is_wrong_with_a_gymnasium_world_is_told_of_one_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    broken, said = BROKEN[name]
    module = f"checked_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(WORLD.format(name=name, broken=broken))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert call("check", f"gym:{module}:{name}-v0", "--steps", "5") == (2 if said else 0)
    out = capsys.readouterr().out
    assert out.count("made") == out.count("closed") == 1 and "Traceback" not in out
    assert all(one in out for one in said), out
    assert out.splitlines()[-1].endswith(f": {len(said) or 'nothing'} found wrong")


OWN = """
class Cart:
    step_s = 0.05
    def reset(self, seed): self.steps = 0
    def step(self): self.steps += 1; {step}
    def observe(self): return {{"steps": self.steps}}
    def outcome(self): return None
    def instruct(self, text): pass
    def go(self): raise AssertionError("nobody knows how to call it")
"""


def test_a_world_without_an_agent_is_stepped_without_calls_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sound := tmp_path / "sound.py").write_text(OWN.format(step="pass"))
    (stuck := tmp_path / "stuck.py").write_text(OWN.format(step="self.steps > 3 and 1 / 0"))
    assert call("check", str(sound), "--steps", "5") == 0
    assert "nothing found wrong; it was stepped without calls, as no --agent" in capsys.readouterr().out
    assert call("check", str(stuck), "--steps", "5") == 2
    assert "step() raised ZeroDivisionError" in capsys.readouterr().out


def test_an_installed_package_is_not_the_users_to_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As MiniGrid's WFC worlds, whose wheel lacks the pictures that they read."""
    (tmp_path / "checked_wheel.py").write_text(
        WORLD.format(name="Wheel", broken="def reset(self, *, seed=None, options=None): raise OSError('no picture')")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = ("check", "gym:checked_wheel:Wheel-v0", "--steps", "5")
    assert call(*run) == 2 and "no picture, checked_wheel.py:" in (said := capsys.readouterr().out)
    assert "Correct it there." in said
    monkeypatch.setattr("rtcontrol.loop.errors.INSTALLED", (*errors.INSTALLED, str(tmp_path)))
    assert call(*run) == 2 and "choose another world, or another version of the package" in capsys.readouterr().out


def test_a_bundled_world_is_sound_from_python_and_an_unknown_one_is_told() -> None:
    assert rtcontrol.check_world("paddle", steps=20) == []
    (unknown,) = rtcontrol.check_world("nowhere")
    assert "nowhere" in str(unknown) and "lander" in str(unknown)
