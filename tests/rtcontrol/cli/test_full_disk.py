"""What is printed into a file that takes nothing more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = "run --env lander --model expert --host inprocess --clock lockstep --no-live --episodes 1 --out"


def printed_to_a_full_disk(*line: str) -> tuple[int, str]:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rtcontrol", *line], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("line", ["envs", "--help", "tools --help"])
def test_a_command_whose_output_cannot_be_written_says_so_and_fails(line: str) -> None:
    status, errors = printed_to_a_full_disk(*line.split())
    assert status == 1 and "Traceback" not in errors
    assert errors.startswith("What was printed could not all be written: [Errno 28] No space left on device")


def test_a_run_whose_report_cannot_be_printed_is_incomplete_and_names_the_folder_that_has_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    status, errors = printed_to_a_full_disk(*RUN.split(), str(out))
    assert status == 6 and "Traceback" not in errors
    assert f"No space left on device. The report is in {out}, too." in errors
    assert (out / "report.json").is_file()
