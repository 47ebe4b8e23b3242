"""Tests of the files in examples/deploy with the schemas of the programs that read these files."""

from __future__ import annotations

import copy
import shlex
from typing import Any

import yaml

from tests.helpers.processes import ROOT

DEPLOY = ROOT / "examples" / "deploy"
UP: dict[str, Any] = yaml.safe_load((DEPLOY / "ray-up.yaml").read_text("utf-8"))


def ray_options() -> set[str]:
    """Return the options of `ray start`."""
    from ray.scripts.scripts import start

    return {option for given in start.params for option in (*given.opts, *given.secondary_opts)}


# -- ray up ------------------------------------------------------------------------------------------------------------


def test_ray_accepts_the_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    made = prepare_config(copy.deepcopy(UP))
    validate_config(made)  # raises, or leaves the program, where `ray up` does not take it
    (kind,) = made["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == UP["max_workers"] == len(UP["provider"]["worker_ips"])


def test_ray_start_lines_have_valid_options() -> None:
    lines = [*UP["head_start_ray_commands"], *UP["worker_start_ray_commands"]]
    starts = [words for line in lines if "start" in (words := shlex.split(line.replace(";", " ")))]
    assert len(starts) == 2
    for words in starts:
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= ray_options() and "RAY_AUTH_MODE=token" in words
    # Work goes to the workers' processors.
    assert "--num-cpus=0" in starts[0] and not [word for word in starts[1] if word.startswith("--num-cpus")]


def test_secret_keys_are_not_sent_to_the_cluster() -> None:
    assert {"*.key", "*.key_secret", "runs"} <= set(UP["rsync_exclude"])
    assert UP["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
