"""The files of examples/deploy: by the schemas of those who read them, by what the image has, and by running them."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import rtcontrol
from tests.helpers.processes import ROOT, Program, cli, free_port
from tests.helpers.ray_cluster import CPUS, NODES, RayCluster
from tests.rtcontrol.commands import unknown_options

DEPLOY = ROOT / "examples" / "deploy"
UP: dict[str, Any] = yaml.safe_load((DEPLOY / "ray-up.yaml").read_text("utf-8"))
CLUSTER, DOOR, SERVICE = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text("utf-8"))
FIELDS: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "kuberay_fields.yaml").read_text("utf-8"))
WHOLE = "RTCONTROL_KUBERAY_CRD"  # path of KubeRay's own ray.io_rayclusters.yaml, where it is at hand


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
    # The decoders' processors are the workers': who starts a door there has the head's for it.
    assert "--num-cpus=0" in starts[0] and not [word for word in starts[1] if word.startswith("--num-cpus")]


def test_no_key_of_a_working_copy_goes_to_the_machines() -> None:
    assert {"*.key", "*.key_secret", "runs"} <= set(UP["rsync_exclude"])
    assert UP["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


# -- KubeRay -----------------------------------------------------------------------------------------------------------


def head(cluster: dict[str, Any] = CLUSTER) -> dict[str, Any]:
    return cluster["spec"]["headGroupSpec"]


def groups() -> list[dict[str, Any]]:
    return [head(), *CLUSTER["spec"]["workerGroupSpecs"]]


def containers() -> list[dict[str, Any]]:
    return [one for group in groups() for one in group["template"]["spec"]["containers"]]


def test_the_cluster_has_fields_that_kuberay_knows() -> None:
    jsonschema.validate(CLUSTER, FIELDS)


def start_param(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda cluster: head(cluster)["rayStartParams"].update({name: value})


# ray-project/kuberay#1984, #3756: what `ray start` was given was no text, or text that the shell took apart.
@pytest.mark.parametrize(
    "spoil",
    [
        start_param("num-cpus", 4),
        start_param("block", True),
        lambda cluster: cluster["spec"]["workerGroupSpecs"][0].pop("minReplicas"),
        lambda cluster: cluster["spec"]["workerGroupSpecs"][0].update(rayResource={"CPU": 4}),
        lambda cluster: cluster["spec"].update(autoscalerOptions={"minReplicas": 1}),
        lambda cluster: cluster.update(apiVersion="ray.io/v1alpha1"),
        lambda cluster: cluster["spec"]["authOptions"].update(mode="password"),
    ],
)
def test_what_kuberay_would_refuse_or_drop_is_refused_here(spoil: Callable[[dict[str, Any]], None]) -> None:
    spoiled = copy.deepcopy(CLUSTER)
    spoil(spoiled)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoiled, FIELDS)


def strict(schema: Any) -> Any:
    """A schema of Kubernetes as it is meant: what is not named is not let in."""
    if not isinstance(schema, dict):
        return [strict(one) for one in schema] if isinstance(schema, list) else schema
    made = {key: strict(value) for key, value in schema.items()}
    if made.pop("x-kubernetes-int-or-string", None):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def test_the_cluster_and_our_fields_agree_with_the_whole_schema() -> None:
    if not (path := os.environ.get(WHOLE)):
        pytest.skip(f"KubeRay's own schema is not at hand: {WHOLE} names its file")
    versions = yaml.safe_load(Path(path).read_text("utf-8"))["spec"]["versions"]
    whole = strict(next(one for one in versions if one["name"] == "v1")["schema"]["openAPIV3Schema"])
    whole["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft202012Validator(whole).validate(CLUSTER)
    spec, ours = whole["properties"]["spec"]["properties"], FIELDS["properties"]["spec"]["properties"]
    assert set(ours) <= set(spec)
    for name in ("authOptions", "headGroupSpec"):
        assert set(ours[name]["properties"]) <= set(spec[name]["properties"])
    worker, of_ours = spec["workerGroupSpecs"]["items"], ours["workerGroupSpecs"]["items"]
    assert set(of_ours["properties"]) <= set(worker["properties"]) and of_ours["required"] == worker["required"]


# skypilot-org/skypilot#5315: `--num-cpus 500m` is no number to Ray, however Kubernetes writes its own.
def test_ray_is_given_options_that_it_has_and_whole_processors() -> None:
    for group in groups():
        params = group["rayStartParams"]
        assert {f"--{name}" for name in params} <= ray_options()
        assert all(re.fullmatch(r"\d+", params[name]) for name in ("num-cpus", "object-store-memory"))
    for worker in CLUSTER["spec"]["workerGroupSpecs"]:
        (container,) = worker["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["cpu"] == worker["rayStartParams"]["num-cpus"]
        assert worker["minReplicas"] <= worker["replicas"] <= worker["maxReplicas"]


def test_tokens_are_of_a_ray_that_has_them_and_of_the_clusters_name() -> None:
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    version = tuple(map(int, CLUSTER["spec"]["rayVersion"].split(".")[:2]))
    (floor,) = re.findall(r'"ray>=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert version >= max((2, 52), tuple(map(int, floor)))
    (door,) = DOOR["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one for one in door["env"]}
    secret = env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert env["RAY_AUTH_MODE"]["value"] == "token" and secret == {
        "name": CLUSTER["metadata"]["name"],
        "key": "auth_token",
    }
    assert env["RAY_ADDRESS"]["value"] == f"{CLUSTER['metadata']['name']}-head-svc:6379"


def test_probes_ask_for_nothing_that_the_image_does_not_have() -> None:
    for container in containers():
        for probe in (container["livenessProbe"], container["readinessProbe"]):
            (line,) = probe["exec"]["command"][2:]
            assert line.startswith("ray health-check") and probe["timeoutSeconds"] >= 10


def test_everything_runs_as_nobody_of_the_images_version() -> None:
    (door,) = DOOR["spec"]["template"]["spec"]["containers"]
    for container in (*containers(), door):
        assert container["image"] == f"rtcontrol-server:{rtcontrol.__version__}"
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["resources"]["limits"] == container["resources"]["requests"]
    for template in (*(group["template"] for group in groups()), DOOR["spec"]["template"]):
        user = template["spec"]["securityContext"]
        assert user["runAsNonRoot"] and user["runAsUser"] == user["fsGroup"] == 10001
        mounts = {mount["name"] for one in template["spec"]["containers"] for mount in one["volumeMounts"]}
        assert mounts == {volume["name"] for volume in template["spec"]["volumes"]}


def script() -> str:
    (door,) = DOOR["spec"]["template"]["spec"]["containers"]
    assert door["command"] == ["sh", "-ec"]
    (text,) = door["args"]
    return str(text)


def served() -> list[str]:
    """The words of the door's `rtcontrol serve`."""
    line = next(line for line in script().splitlines() if line.startswith("exec rtcontrol "))
    return shlex.split(line)[2:]


def test_a_door_waits_for_as_many_processors_as_all_doors_have_decoders_and_the_workers_have_them() -> None:
    words = served()
    assert unknown_options(words) == set()
    decoders = int(words[words.index("--decoders") + 1]) * DOOR["spec"]["replicas"]
    there = sum(int(one["rayStartParams"]["num-cpus"]) * one["replicas"] for one in CLUSTER["spec"]["workerGroupSpecs"])
    (waits,) = re.findall(r'get\("CPU", 0\) < (\d+)', script())
    assert decoders == there == int(waits)
    assert head()["rayStartParams"]["num-cpus"] == "0" and "--num-cpus=0" in script()


def test_clients_find_each_door_by_its_name() -> None:
    labels = DOOR["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"] == DOOR["spec"]["selector"]["matchLabels"] == labels
    assert SERVICE["metadata"]["name"] == DOOR["spec"]["serviceName"] and SERVICE["spec"]["clusterIP"] == "None"
    assert SERVICE["spec"]["ports"][0]["port"] == 5555


@contextlib.contextmanager
def raylet_ended(address: str) -> Iterator[None]:
    """The node that a door's script adds, as a daemon, is ended by its processes' ids."""
    try:
        yield
    finally:
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (path / "cmdline").read_bytes().decode("utf-8", "replace")
                marked = b"RTCONTROL_DEPLOYED=yes" in (path / "environ").read_bytes().split(b"\0")
                if marked and address.rpartition(":")[2] in words:
                    os.kill(int(path.name), 9)


@pytest.mark.slow
@pytest.mark.serial
def test_a_doors_script_makes_it_a_machine_of_the_cluster_that_has_no_decoders(tmp_path: Path) -> None:
    keys, bin_ = tmp_path / "keys", tmp_path / "bin"
    assert cli("keys", "new", "robot", "--keys", str(keys)).returncode == 0
    for path in keys.iterdir():
        path.chmod(0o440)  # as in a secret's volume with a group
    bin_.mkdir()
    for name, module in (("python", ""), ("rtcontrol", "-m rtcontrol"), ("ray", "-m ray.scripts.scripts")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (bin_ / name).chmod(0o755)
    port = free_port()
    here = {"/tmp/keys": str(tmp_path / "kept"), "/keys/": f"{keys}/", "0.0.0.0:5555": f"127.0.0.1:{port}"}
    here |= {"/data/records": str(tmp_path / "records"), '"CPU", 0) < 8': f'"CPU", 0) < {CPUS * NODES}'}
    text = script()
    for there, place in here.items():
        assert there in text
        text = text.replace(there, place)
    with RayCluster() as cluster, raylet_ended(cluster.address):
        env = {"RAY_ADDRESS": cluster.address, "PATH": f"{bin_}:{os.environ['PATH']}", "RTCONTROL_DEPLOYED": "yes"}
        program = Program(
            ["-c", "import os, sys; os.execvp('sh', ['sh', '-ec', sys.argv[1]])", text], tmp_path / "log", env=env
        )
        try:
            program.says(f"listening on tcp://127.0.0.1:{port}", 240.0)
            places = re.findall(r"decoder-\d: up, pid \d+ on node (\w+)", program.log())
            assert len(places) == 4 and set(places) <= set(cluster.nodes), program.log()
            assert not [path for path in (tmp_path / "kept").iterdir() if path.stat().st_mode & 0o077]
            program.end()
        finally:
            program.kill()
