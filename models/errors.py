"""Errors that a user can do something about, and the files that most of them are about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A mistake in what the user gave: the command line prints it as one paragraph and exits with status 2.

    `what` says what happened and where, `remedy` what to do next.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


def too_long(context: int, prompt: int | None = None) -> UserError:
    """The call does not fit behind the prompt."""
    which = "The prompt" if prompt is None else f"The prompt of {prompt} tokens"
    return UserError(
        f"{which} leaves no room for the call in the model's context of {context}.",
        "Shorten the instruction or the observation, or describe fewer tools.",
    )


def read_json(path: Path, missing: UserError, remedy: str) -> dict[str, Any]:
    """The JSON object in a file. Raises `missing` where there is no file, else UserError with this remedy."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise missing from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).", remedy) from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is no JSON object.", remedy)
    return found
