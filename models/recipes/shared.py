"""Code that all recipes share: command-line options, and resuming a run.

A run's folder holds the trainer's `state.pt`. The same command continues from that state, and a finished run trains no
more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.trainer import Progress

CALL_SHAPE = '{"name": "", "arguments": {}}'
# Marks between words in schemas and in sentences.
MARKS = (
    """{ } [ ] ( ) : , ; " ' ? ! . {" "} ": "," ":{" "}} ":[" "], "]} ": " ", " ':{"' ':"' '","' '"},' '":["' '-' '/'"""
)
QUIET_S = 30.0  # between two lines of progress


def options(text: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every recipe; `text` is the script's docstring."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the run; it resumes there (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and rows (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    return parser


def run(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], object]) -> None:
    """Parse the command line and run `work`; errors and Ctrl-C end the script with a line and status 2 or 130."""
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        print(work(args))
    except UserError as error:
        sys.exit(f"{error.what} {error.remedy}")
    except KeyboardInterrupt:
        print(f"\nInterrupted. The same command continues from what is saved in {args.out}.", file=sys.stderr)
        sys.exit(130)


def printed(name: str) -> Progress:
    """Return a progress callback that prints a line now and then."""
    last_s = time.monotonic()

    def progress(line: dict[str, Any]) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > QUIET_S:
            last_s = time.monotonic()
            print(f"{name}: {line['samples']:,} samples, loss {line['loss']}, accuracy {line['accuracy']}", flush=True)

    return progress
