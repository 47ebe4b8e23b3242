"""The pages' files: what only the pages have, and the modules of the JavaScript client that they are made with."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

PAGE = Path(__file__).parent / "page"
# setuptools' package-dir puts the client beside the page; in a source tree, also of an editable install, it stands at
# its own place.
CLIENT = next(
    folder
    for folder in (PAGE.with_name("javascript"), PAGE.parents[2] / "bridges" / "javascript" / "src")
    if (folder / "index.js").is_file()
)


def mounts(html: bool = False) -> list[Mount]:
    """The client's modules at `/client`, the page's files at `/`; with `html`, `/` itself is a page."""
    return [
        Mount("/client", StaticFiles(directory=CLIENT)),
        Mount("/", StaticFiles(directory=PAGE, html=html)),
    ]
