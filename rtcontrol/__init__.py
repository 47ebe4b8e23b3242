"""The top floor: the fixed-rate control loop, its decoder hosts, its record and report, and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtcontrol.run.api import Model

__version__ = "0.1.0"

# In a source tree the floors `agents/ envs/ models/ bridges/` stand beside this package instead of inside it
# (setuptools' package-dir puts them inside on installation). Looking there too makes an uninstalled tree importable.
_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "models" / "__init__.py").is_file():
    __path__.append(str(_root))


def load(
    model: str,
    *,
    dtype: str = "auto",
    device: str | None = None,
    threads: int | None = None,
    engine: str = "torch",
) -> Model:
    """A model to decide with from Python: `rtcontrol.load("lander").session().decide(text, instruction)`.

    `model` is a bundled name, a checkpoint folder or a hub id; the rest as of `rtcontrol.run.api.Model`. Raises
    UserError.
    """
    from rtcontrol.run.api import Model

    return Model(model, dtype, device, threads, engine)
