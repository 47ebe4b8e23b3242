"""Progress displays in pipes, in notebooks, and switched off."""

from __future__ import annotations

from typing import Any

import pytest
import rich.console

from rtcontrol.telemetry.progress import Progress, slow_work


def show_twenty_steps(shows: bool = True) -> None:
    with Progress("{done} of {total}", shows) as display:
        for done in range(21):
            display(done, 20)
        display.say("Done.")


def test_pipe_gets_a_line_per_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    show_twenty_steps()
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [*(f"{done} of 20" for done in range(2, 21, 2)), "Done."]


def test_notebook_gets_a_line_that_changes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    show_twenty_steps()
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and [line.rstrip() for line in err.split("\r")][-2:] == ["20 of 20", "Done."]


def test_display_that_is_off_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show_twenty_steps(shows=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("shows", "text"), [(True, "Loading lander ...\n"), (False, "")])
def test_slow_work_is_announced(
    shows: bool, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Due:
        daemon = False

        def __init__(self, after_s: float, function: Any, values: Any, options: Any) -> None:
            self.start = lambda: function(*values, **options)
            self.cancel = lambda: None

    monkeypatch.setattr("rtcontrol.telemetry.progress.threading.Timer", Due)
    with slow_work("Loading lander ...", shows):
        pass
    assert capsys.readouterr().err == text
