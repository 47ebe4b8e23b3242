"""The files of examples/deploy, checked by the schemas of the programs that read them."""

from __future__ import annotations

import copy
import shlex
from typing import Any

import jsonschema
import pytest
import yaml

from tests.helpers.processes import ROOT

DEPLOY = ROOT / "examples" / "deploy"
UP: dict[str, Any] = yaml.safe_load((DEPLOY / "ray-up.yaml").read_text("utf-8"))


def ray_options() -> set[str]:
    """Those of `ray start`."""
    from ray.scripts.scripts import start

    return {option for given in start.params for option in (*given.opts, *given.secondary_opts)}


# -- ray up ------------------------------------------------------------------------------------------------------------


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """As `ray up` takes it: raises, or leaves the program, where it does not."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    made = prepare_config(copy.deepcopy(config))
    validate_config(made)
    return dict(made)


def test_ray_takes_the_cluster() -> None:
    made = prepared(UP)
    (kind,) = made["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == len(UP["provider"]["worker_ips"])


# ray-project/ray#11900: a file without the number of workers passed the schema, and ended the autoscaler later.
# ray-project/ray#13668, #40835: what had been head_node, worker_nodes, min_workers moved into types of nodes.
def test_the_number_of_workers_is_that_of_the_machines_and_moved_keys_are_refused() -> None:
    assert UP["max_workers"] == len(UP["provider"]["worker_ips"])
    for moved in ({"initial_workers": 2}, {"target_utilization_fraction": 0.8}, {"autoscaling_mode": "default"}):
        with pytest.raises(jsonschema.ValidationError, match="Additional properties"):
            prepared({**UP, **moved})
    for moved in ({"head_node": {"a": 1}}, {"worker_nodes": {"a": 1}}):
        with pytest.raises(Exception, match="not supported for on-premise"):
            prepared({**UP, **moved})


def test_each_line_that_starts_ray_has_options_that_ray_has() -> None:
    lines = [*UP["head_start_ray_commands"], *UP["worker_start_ray_commands"]]
    starts = [words for line in lines if "start" in (words := shlex.split(line.replace(";", " ")))]
    assert len(starts) == 2
    for words in starts:
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= ray_options() and "RAY_AUTH_MODE=token" in words
    # Work goes to the workers' processors.
    assert "--num-cpus=0" in starts[0] and not [word for word in starts[1] if word.startswith("--num-cpus")]


def test_no_key_of_a_working_copy_goes_to_the_machines() -> None:
    assert {"*.key", "*.key_secret", "runs"} <= set(UP["rsync_exclude"])
    assert UP["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
