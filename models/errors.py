"""Errors that a user can do something about."""

from __future__ import annotations


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
