"""Read docstrings, which become the descriptions of tools and the help of commands."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from typing import Any


def docstring(value: Any) -> str:
    """Return the docstring of a function or a class, without its indentation; an empty text if it has none.

    With `python -OO`, which removes docstrings, the docstring is read from the source file.
    """
    text = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    if text is not None or sys.flags.optimize < 2:
        return inspect.cleandoc(text or "")
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
        return ast.get_docstring(node) or ""  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError, SyntaxError):  # no source file, or a lambda
        return ""
