"""The Python of the documentation runs as it stands there."""

from __future__ import annotations

import re
import subprocess

import pytest

import rtcontrol
from tests.helpers.processes import ROOT, python


def done(page: str) -> subprocess.CompletedProcess[str]:
    """Its examples, one after the other in one program."""
    code = "".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL))
    return python("-c", code)


@pytest.mark.parametrize(("page", "says"), [("README.md", "engines("), ("docs/python.md", "Bundled: driver, lander")])
def test_the_examples_of_a_page_run(page: str, says: str) -> None:
    ran = done(page)
    assert ran.returncode == 0 and says in ran.stdout, ran.stderr


def test_what_is_public_is_there_by_name() -> None:
    for name in rtcontrol.__all__:
        assert getattr(rtcontrol, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        rtcontrol.nothing  # noqa: B018
