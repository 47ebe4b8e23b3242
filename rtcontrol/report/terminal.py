"""The terminal that people read: nothing that is shown there moves its cursor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from rtcontrol.bridges.printable import printable


class Terminal(Console):
    """rich's console. Of what it shows, tables and bars too, control characters stand escaped, but for the ends of
    lines: colours and cursor movements are rich's own alone."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_escaped(text), **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_escaped(segment.text), segment.style)


def _escaped(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
