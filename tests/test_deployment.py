"""Tests of the files in examples/deploy with the schemas of the programs that read these files."""

from __future__ import annotations

import copy
import re
import shlex
from typing import Any

import jsonschema
import pytest
import yaml

import rtcontrol
from rtcontrol.models.errors import UserError
from rtcontrol.scale.replica import TOKEN
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


# -- KubeRay's RayService, by its fields and by Serve's own schema -----------------------------------------------------


MANIFEST: dict[str, Any] = yaml.safe_load((DEPLOY / "rayservice.yaml").read_text("utf-8"))
FIELDS: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "kuberay_fields.yaml").read_text("utf-8"))
# From ray.io_rayservices.yaml of KubeRay 1.7, as far as the manifest may use it; its cluster is RayCluster's `spec`.
SERVICE: dict[str, Any] = {
    "definitions": FIELDS["definitions"],
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayService"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["rayClusterConfig"],
            "additionalProperties": False,
            "properties": {
                "serveConfigV2": {"type": "string"},
                "excludeHeadPodFromServeSvc": {"type": "boolean"},
                "rayClusterConfig": FIELDS["properties"]["spec"],
            },
        },
    },
}


def cluster() -> dict[str, Any]:
    return MANIFEST["spec"]["rayClusterConfig"]


def groups() -> list[dict[str, Any]]:
    return [cluster()["headGroupSpec"], *cluster()["workerGroupSpecs"]]


def worker() -> dict[str, Any]:
    return groups()[1]["template"]["spec"]["containers"][0]


@pytest.fixture
def config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST["spec"]["serveConfigV2"])
    return found


def test_service_has_fields_that_kuberay_knows() -> None:
    jsonschema.validate(MANIFEST, SERVICE)


def test_serve_accepts_the_application_and_its_arguments(config: dict[str, Any]) -> None:
    pytest.importorskip("fastapi", reason="the ray-serve extra is not installed")
    from ray.serve.schema import ServeDeploySchema

    from rtcontrol.scale.application import parse_options

    ServeDeploySchema.model_validate(config)
    (application,) = config["applications"]
    assert application["import_path"] == "rtcontrol.scale:build"
    args = application["args"]
    parse_options(args).check()
    with pytest.raises(UserError, match="--keys is missing"):
        parse_options({**args, "keys": None}).check()
    most = int(args["replicas"].partition(":")[2])
    there = sum(int(one["rayStartParams"]["num-cpus"]) * one["replicas"] for one in cluster()["workerGroupSpecs"])
    # While a model is changed there are old and new replicas.
    assert most + int(args["replicas"].partition(":")[0]) <= there
    name = f"{MANIFEST['metadata']['name']}-serve-svc"  # as KubeRay names it
    assert args["allow_origin"] == [f"http://{name}:{config['http_options']['port']}"]
    assert [one["name"] for one in worker()["env"]] == [TOKEN]


# ray-project/kuberay#4994: with its proxy on the head alone no worker was ever ready, and none was sent a request.
def test_every_worker_has_a_proxy_for_requests(config: dict[str, Any]) -> None:
    assert config["proxy_location"] == "EveryNode" and config["http_options"]["host"] == "0.0.0.0"
    port = config["http_options"]["port"]
    assert {one["name"]: one["containerPort"] for one in worker()["ports"]}["serve"] == port
    assert f"127.0.0.1:{port}/-/healthz" in worker()["readinessProbe"]["exec"]["command"][2]
    assert MANIFEST["spec"]["excludeHeadPodFromServeSvc"]


def test_image_has_ray_and_runs_unprivileged() -> None:
    versions = re.findall(r'"ray\[serve\]>=(\d+\.\d+),<', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert {cluster()["rayVersion"].rpartition(".")[0]} == set(versions)
    assert cluster()["authOptions"] == {"mode": "token"}
    for group in groups():
        assert {f"--{name}" for name in group["rayStartParams"]} <= ray_options()
        spec = group["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
        for container in spec["containers"]:
            assert container["image"] == f"rtcontrol-server:{rtcontrol.__version__}-ray-serve"
            assert container["resources"]["limits"] == container["resources"]["requests"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
