"""The C# client's conversation against the behaviour table."""

from __future__ import annotations

from typing import Any

from tests.bridges.behaviour import Shell, TalkCore, cases, check, options_of
from tests.bridges.unity.mono import Driver


@cases("csharp")
def test_conversation_behaves_as_the_table_says(core: Driver, case: dict[str, Any]) -> None:
    check(case, Shell(TalkCore(core.ask, options_of(case))))
