"""Tools one a line, as published sets have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.run.toolsets import tools_from


def test_tools_of_a_jsonl_file_are_one_a_line_and_a_torn_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tools_arm.jsonl"
    functions = [
        {"type": "function", "function": {"name": n, "parameters": {"properties": {}}}} for n in ("grip", "home")
    ]
    path.write_text("\n\n".join(json.dumps(f) for f in functions) + "\n")
    assert [schema.name for schema in tools_from(str(path)).schemas] == ["grip", "home"]
    path.write_text(json.dumps(functions[0]) + "\n{torn\n")
    with pytest.raises(UserError, match=r"tools_arm\.jsonl cannot be read as tools"):
        tools_from(str(path))
