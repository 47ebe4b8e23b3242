"""The group of `rtcontrol bench`, and what makes a command of a bench."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtcontrol.cli.figures import JsonFile, show
from rtcontrol.cli.options import group
from rtcontrol.run.options import expanded

app = group(help="Measure on this machine, side by side with the baselines.")
Document = dict[str, Any]


def measures(bench: Callable[..., Document]) -> Callable[..., Document]:
    """The command of a bench, which is given what tells how much is done and, by name, its options (those of a
    BenchOptions one by one): its document is shown, and written where --json says."""

    def command(json_file: Path | None, **given: Any) -> None:
        if (options := given.get("options")) is not None:
            from rtcontrol.models.checkpoint.checkpoint import read_config, resolve

            read_config(resolve(options.model))  # before anything is begun: `memory` loads it in a process of its own
        show(lambda shown: bench(shown, **given), json_file)

    _, *parameters = inspect.signature(bench, eval_str=True).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    last = inspect.Parameter("json_file", keyword, default=None, annotation=JsonFile)
    parameters = [one.replace(kind=keyword) for one in parameters]
    command.__signature__ = inspect.Signature([*parameters, last])  # type: ignore[attr-defined]
    command.__name__, command.__doc__ = bench.__name__, bench.__doc__
    app.command()(expanded(command))
    return bench
