"""Define what all recipes share: command-line options, error messages and progress.

A run's folder contains the trainer's `state.pt`, from which the same command resumes. After a finished run, the command
does not train again.
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
# Each of these sequences of punctuation, which are common in schemas and sentences, becomes one token.
MARKS = (
    """{ } [ ] ( ) : , ; " ' ? ! . {" "} ": "," ":{" "}} ":[" "], "]} ": " ", " ':{"' ':"' '","' '"},' '":["' '-' '/'"""
)
REPORT_INTERVAL_S = 30.0  # seconds between two lines of progress


def base_parser(text: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all recipes; `text` is the script's docstring, `out` the default folder."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the run; it resumes there (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and rows (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    return parser


def run_script(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], object]) -> None:
    """Parse the command line, run `work` and print its result. A UserError or Ctrl-C ends the script with a message."""
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        print(work(args))
    except UserError as error:
        sys.exit(f"{error.what} {error.remedy}")
    except KeyboardInterrupt:
        print(f"\nInterrupted. The same command resumes from the state in {args.out}.", file=sys.stderr)
        sys.exit(130)


def progress_printer(name: str) -> Progress:
    """Return a callback for the trainer that prints a line of progress every REPORT_INTERVAL_S seconds."""
    last_s = time.monotonic()

    def progress(line: dict[str, Any]) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > REPORT_INTERVAL_S:
            last_s = time.monotonic()
            print(f"{name}: {line['samples']:,} samples, loss {line['loss']}, accuracy {line['accuracy']}", flush=True)

    return progress
