"""The pages' files: what only the pages have, and the modules of the JavaScript client that they are made with."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

PAGE = Path(__file__).parent / "page"
CLIENT = PAGE.with_name("javascript")  # in a source tree a link to the npm package's folder
# Modules that stood among the page's files before they were a package.
MOVED = ("crowd.js", "session.js")


def mounts(html: bool = False) -> list[BaseRoute]:
    """The client's modules at `/client`, the page's files at `/`; with `html`, `/` itself is a page."""
    return [
        *(Route(f"/{name}", lambda _, to=f"client/{name}": RedirectResponse(to)) for name in MOVED),
        Mount("/client", StaticFiles(directory=CLIENT)),
        Mount("/", StaticFiles(directory=PAGE, html=html)),
    ]
