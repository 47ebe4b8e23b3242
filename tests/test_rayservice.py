"""examples/deploy/rayservice.yaml: by the fields of KubeRay's RayService, by Serve's own schema of its application, and
by what the image has. What it starts is in tests/rtcontrol/ray_serve."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import rtcontrol
from rtcontrol.ray_serve.options import DoorOptions
from tests.helpers.processes import ROOT
from tests.test_deployment import DEPLOY, FIELDS, ray_options, strict

MANIFEST: dict[str, Any] = yaml.safe_load((DEPLOY / "rayservice.yaml").read_text("utf-8"))
WHOLE = "RTCONTROL_KUBERAY_SERVICE_CRD"  # path of KubeRay's own ray.io_rayservices.yaml, where it is at hand
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


def cluster(manifest: dict[str, Any] = MANIFEST) -> dict[str, Any]:
    return manifest["spec"]["rayClusterConfig"]


def groups() -> list[dict[str, Any]]:
    return [cluster()["headGroupSpec"], *cluster()["workerGroupSpecs"]]


def containers() -> list[dict[str, Any]]:
    return [one for group in groups() for one in group["template"]["spec"]["containers"]]


@pytest.fixture
def config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST["spec"]["serveConfigV2"])
    return found


def test_the_service_has_fields_that_kuberay_knows() -> None:
    jsonschema.validate(MANIFEST, SERVICE)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one: one["spec"].update(serveConfigV2={"applications": []}),  # an object, where KubeRay takes text
        lambda one: one["spec"].update(serveConfig="applications: []"),
        lambda one: one["spec"].pop("rayClusterConfig"),
        lambda one: cluster(one)["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda one: one.update(apiVersion="ray.io/v1alpha1"),
    ],
)
def test_what_kuberay_would_refuse_or_drop_is_refused_here(spoil: Callable[[dict[str, Any]], None]) -> None:
    spoiled = copy.deepcopy(MANIFEST)
    spoil(spoiled)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoiled, SERVICE)


def test_the_service_and_our_fields_agree_with_the_whole_schema() -> None:
    if not (path := os.environ.get(WHOLE)):
        pytest.skip(f"KubeRay's own schema is not at hand: {WHOLE} names its file")
    versions = yaml.safe_load(Path(path).read_text("utf-8"))["spec"]["versions"]
    whole = strict(next(one for one in versions if one["name"] == "v1")["schema"]["openAPIV3Schema"])
    whole["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft202012Validator(whole).validate(MANIFEST)
    spec, ours = whole["properties"]["spec"], SERVICE["properties"]["spec"]
    assert set(ours["properties"]) <= set(spec["properties"]) and ours["required"] == spec["required"]
    of_cluster = spec["properties"]["rayClusterConfig"]["properties"]
    assert set(FIELDS["properties"]["spec"]["properties"]) <= set(of_cluster)


def test_serve_takes_the_application_and_it_takes_its_arguments(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    (application,) = config["applications"]
    options = DoorOptions.parse(application["args"])
    assert application["import_path"] == "rtcontrol.ray_serve:build" and options.token_env is not None
    pytest.importorskip("fastapi", reason="the ray-serve extra is not installed")
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(config)


def test_each_door_and_each_decoder_has_a_processor_of_a_worker(config: dict[str, Any]) -> None:
    args = config["applications"][0]["args"]
    there = sum(int(one["rayStartParams"]["num-cpus"]) * one["replicas"] for one in cluster()["workerGroupSpecs"])
    assert args["doors"] + args["decoders"] * args["threads"] == there
    head, *workers = groups()
    assert head["rayStartParams"]["num-cpus"] == "0" and MANIFEST["spec"]["excludeHeadPodFromServeSvc"]
    for worker in workers:
        (container,) = worker["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["cpu"] == worker["rayStartParams"]["num-cpus"]


# ray-project/kuberay#4994: with its proxy on the head alone no worker was ever ready, and none was sent a request.
def test_requests_come_to_every_worker_that_has_a_proxy_and_whose_probe_says_so(config: dict[str, Any]) -> None:
    assert config["proxy_location"] == "EveryNode" and config["http_options"]["host"] == "0.0.0.0"
    for container in containers():
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        assert ports["serve"] == config["http_options"]["port"]
    for worker in cluster()["workerGroupSpecs"]:
        probe = worker["template"]["spec"]["containers"][0]["readinessProbe"]
        compile(probe["exec"]["command"][2], "probe", "exec")
        assert f"127.0.0.1:{config['http_options']['port']}/-/healthz" in probe["exec"]["command"][2]
        assert probe["failureThreshold"] == 1


def test_the_proxies_port_is_open_to_the_cluster_so_everybody_shows_a_token(config: dict[str, Any]) -> None:
    args = config["applications"][0]["args"]
    name = f"{MANIFEST['metadata']['name']}-serve-svc"  # as KubeRay calls it
    assert args["allow_origin"] == [f"http://{name}:{config['http_options']['port']}"]
    for worker in cluster()["workerGroupSpecs"]:
        (container,) = worker["template"]["spec"]["containers"]
        (token,) = [one for one in container["env"] if one["name"] == args["token_env"]]
        assert token["valueFrom"]["secretKeyRef"] == {"name": "rtcontrol-token", "key": "token"}
    assert cluster()["authOptions"] == {"mode": "token"}


def test_probes_and_options_are_such_as_the_image_has_and_everything_runs_as_nobody() -> None:
    versions = re.findall(r'"ray\[serve\]>=(\d+\.\d+),<', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert {cluster()["rayVersion"].rpartition(".")[0]} == set(versions)
    for group in groups():
        assert {f"--{name}" for name in group["rayStartParams"]} <= ray_options()
        user = group["template"]["spec"]["securityContext"]
        assert user["runAsNonRoot"] and user["runAsUser"] == user["fsGroup"] == 10001
    for container in containers():
        assert container["image"] == f"rtcontrol-server:{rtcontrol.__version__}-ray-serve"
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["resources"]["limits"] == container["resources"]["requests"]
        for probe in (container["livenessProbe"], container["readinessProbe"]):
            assert probe["exec"]["command"][0] in ("sh", "python")
    assert "ARG EXTRAS=\n" in (dockerfile := (ROOT / "Dockerfile").read_text("utf-8")) and '".${EXTRAS}"' in dockerfile
