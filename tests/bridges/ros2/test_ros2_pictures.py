"""A robot's camera, from its topic into the server's record: by DDS alone, and from real nodes of ROS 2."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol.envs.pictures import png
from rtcontrol_client.ros2.bus import Bus
from rtcontrol_client.ros2.config import parse
from rtcontrol_client.ros2.definitions import Definitions
from rtcontrol_client.ros2.environment import domain as dds_domain
from rtcontrol_client.ros2.errors import Ros2BridgeError
from rtcontrol_client.ros2.images import COMPRESSED_IMAGE, DEFINITION, read_bytes_whole
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.client.worlds import Process, free_port
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import Peer, Start
from tests.bridges.ros2.test_real_ros import NODE
from tests.bridges.wire.test_picture_files import enlarged, jpeg
from tests.helpers.processes import Program, until
from tests.rtcontrol.serve.test_session_pictures import recorded

CAMERA, BEAT = "/camera/image_raw/compressed", "/beat"
ROBOT = f"""
instruction: Go on.
observe: {{topics: {{{BEAT}: {{type: std_msgs/msg/Int32, max_age_ms: 5000, fields: {{beat: data}}}}}}}}
tools: {{stop: {{description: Stand still., publish: {{/cmd_vel: {{type: geometry_msgs/msg/Twist}}}}}}}}
safe: stop
picture: {{topic: {CAMERA}, hz: 10}}
"""
PNG = png(np.full((5, 6, 3), 90, np.uint8))
# As drivers and image_transport write the format: the file's bytes decide (lichtblick-suite/lichtblick#585: what stands
# before the semicolon hid pictures; foxglove/mcap#1701: so did image/jpeg).
IMAGES = [
    ("jpeg", jpeg()),
    ("rgb8; jpeg compressed bgr8", jpeg(32, 32)),
    ("rgb8; jpeg compressed; bgr8", jpeg(16, 16)),
    ("bgr8; png compressed bgr8", PNG),
    ("image/jpeg", jpeg(24, 24)),
    ("", jpeg(40, 40) + bytes(2000)),  # padded, as openmv/openmv#822
]
DEPTH = ("16UC1; compressedDepth png", struct.pack("<iff", 0, 0.0, 0.0) + PNG)
LARGE = enlarged(jpeg(300, 300, quality=100), 400_000)


def robot_file(folder: Path, **more: str) -> Path:
    file = folder / "camera.yaml"
    text = ROBOT
    for old, new in more.items():
        text = text.replace(old, new)
    file.write_text(text)
    return file


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path, free_port(), "--record-pictures", "10")
    made.start()
    yield made
    made.kill()


def files(server: Process) -> list[bytes]:
    """What its first session's record holds, once it has ended."""
    server.end()
    return [data for _, data, _ in recorded(server.out / "records" / "session-0001" / "record.mcap")]


class DdsCamera:
    """A robot's camera, and something else to observe, by DDS."""

    def __init__(self, domain: dict[str, str]) -> None:
        types = Mapper(parse(ROBOT, "camera"), "camera")
        assert types.picture is not None
        bus = self._bus = Bus(dds_domain(domain))
        self._image, self._beat = bus.output(types.picture), bus.output(types.sources[0].topic)

    def beat(self) -> None:
        self._beat.write(self._beat.topic.cls())

    def show(self, form: str, data: bytes) -> None:
        made = self._image.topic.cls()
        made.header.stamp.sec, made.header.frame_id, made.format, made.data = int(time.time()), "camera", form, [*data]
        assert self._image.write(made)
        self.beat()


def test_a_camera_is_recorded_as_it_came_whatever_its_format_is_called(
    server: Process, domain: dict[str, str], bridge: Start, tmp_path: Path
) -> None:
    camera = DdsCamera(domain)
    running = bridge(server.endpoint, "--no-guard", "--connect-timeout", "30", config=robot_file(tmp_path))
    running.says("in session")
    for form, data in IMAGES:
        for _ in range(20):
            camera.show(form, data)
            time.sleep(0.05)
    assert running.end() == 143 and "not sent" not in running.log()
    found = files(server)
    assert [data for i, data in enumerate(found) if i == 0 or found[i - 1] != data] == [data for _, data in IMAGES]


def test_a_depth_image_is_told_and_not_sent_and_the_bridge_goes_on(
    server: Process, domain: dict[str, str], bridge: Start, tmp_path: Path
) -> None:
    # ros4hri/hri_body_detect#2: a header stands before the PNG.
    camera = DdsCamera(domain)
    running = bridge(server.endpoint, "--no-guard", "--connect-timeout", "30", config=robot_file(tmp_path))
    says = "pictures of the format '16UC1; compressedDepth png' are not sent: The picture has 12 bytes before its PNG"
    until(lambda: camera.show(*DEPTH) or says in running.log(), f"not said: {running.log()}", every=0.05)
    until(lambda: camera.show(*IMAGES[0]) or "picture is in order" in running.log(), "it stays refused", every=0.05)
    running.end()
    assert set(files(server)) == {IMAGES[0][1]}


def test_a_camera_that_is_there_and_falls_silent_is_told_until_it_goes_on(
    server: Process, domain: dict[str, str], bridge: Start, tmp_path: Path
) -> None:
    camera = DdsCamera(domain)
    running = bridge(server.endpoint, "--no-guard", "--connect-timeout", "30", config=robot_file(tmp_path))
    running.says("in session")
    camera.show(*IMAGES[0])
    says = f"{CAMERA}: no picture has come for 10 s"
    until(lambda: camera.beat() or says in running.log(), f"not said: {running.log()}", every=0.05)
    until(lambda: camera.show(*IMAGES[0]) or "picture is in order" in running.log(), "it stays silent", every=0.05)
    assert running.end() == 143


def test_a_server_of_before_is_sent_none_and_that_is_told(
    brain: Brain, domain: dict[str, str], bridge: Start, tmp_path: Path
) -> None:
    brain.policy = lambda text, instruction: FunctionCall(name="stop")
    running = bridge(brain.endpoint, config=robot_file(tmp_path))
    camera = DdsCamera(domain)
    until(lambda: camera.show(*IMAGES[0]) or brain.observed is not None, "it observes nothing", every=0.05)
    running.says("pictures are not sent: the server is of before, and takes none")
    assert running.end() == 143


# Of the class that reads bytes whole.


def image_class() -> Any:
    return Definitions({COMPRESSED_IMAGE: DEFINITION}, "").message(COMPRESSED_IMAGE)[1]


def test_an_image_is_read_whole_as_cyclonedds_reads_it_number_by_number() -> None:
    usual, whole = image_class(), image_class()
    read_bytes_whole(whole)
    for frame in ("", "c", "ca", "cam", "camé"):
        made = usual()
        made.header.stamp.sec, made.header.stamp.nanosec = -3, 4_000_000_000
        made.header.frame_id, made.format, made.data = frame, f"jpeg{frame}", [*range(256)] * 3
        for raw in (made.serialize(), made.serialize(use_version_2=True)):
            theirs, ours = usual.deserialize(raw), whole.deserialize(raw)
            assert (ours.header.frame_id, ours.format) == (theirs.header.frame_id, theirs.format)
            assert (ours.header.stamp.sec, ours.header.stamp.nanosec) == (-3, 4_000_000_000)
            assert [*ours.data] == theirs.data
    raw = made.serialize()
    for length in range(4, len(raw)):
        with pytest.raises((ValueError, struct.error)):
            whole.deserialize(raw[:length])


WRONG = {
    "hz: 10": ("hz: 0", "picture.hz"),
    "topic: /camera": ("topic: ~/camera", "private"),
    ", hz: 10": (", rate: 10", "picture.rate is no key"),
    CAMERA: (BEAT, "it is said to be std_msgs/msg/Int32 and sensor_msgs/msg/CompressedImage"),
}


@pytest.mark.parametrize("old", WRONG)
def test_a_mistake_in_the_file_is_told_with_its_key(old: str) -> None:
    new, says = WRONG[old]
    with pytest.raises(Ros2BridgeError, match=says):
        Mapper(parse(ROBOT.replace(old, new), "robot.yaml"), "robot.yaml")


def test_the_topic_alone_is_enough() -> None:
    spec = parse(ROBOT.replace(f"{{topic: {CAMERA}, hz: 10}}", CAMERA), "robot.yaml").picture
    assert spec is not None and (spec.topic, spec.hz) == (CAMERA, 2.0)


# From real nodes. No guard: it would wait for a base, which none of these has.


def by_dds(ros: str, endpoint: str, config: Path, domain: dict[str, str], log: Path) -> Program:
    command = [
        "-m",
        "rtcontrol_client.ros2",
        "--config",
        str(config),
        "--connect",
        endpoint,
        "--no-guard",
        "--connect-timeout",
        "30",
    ]
    return Program(command, log, env=domain)


def by_node(ros: str, endpoint: str, config: Path, domain: dict[str, str], log: Path) -> Program:
    given = ["--ros-args", "-p", f"config:={config}", "-p", f"connect:={endpoint}", "-p", "guard:=false"]
    return Program([str(NODE), *given], log, ros, env=domain)


@pytest.mark.parametrize("start", [by_dds, by_node])
@pytest.mark.parametrize("reliability", ["reliable", "best_effort"])
def test_a_real_nodes_camera_is_recorded_by_the_bridge_and_by_the_node(
    start: Callable[..., Program],
    reliability: str,
    ros: str,
    peer: Peer,
    server: Process,
    domain: dict[str, str],
    tmp_path: Path,
) -> None:
    peer.ask("publisher", topic=CAMERA, type=COMPRESSED_IMAGE, reliability=reliability)
    peer.ask("publisher", topic=BEAT, type="std_msgs/msg/Int32")
    shown = [IMAGES[1], IMAGES[3], ("jpeg", LARGE)] if reliability == "reliable" else IMAGES[:4]
    config = robot_file(tmp_path, **({"hz: 10": "hz: 10, qos: {reliability: reliable}"} if len(shown) == 3 else {}))
    running = start(ros, server.endpoint, config, domain, tmp_path / "bridge.log")
    try:
        until(lambda: peer.ask("matched")[CAMERA] and peer.ask("matched")[BEAT], "they have not met")
        ours = Definitions({COMPRESSED_IMAGE: DEFINITION}, "").message(COMPRESSED_IMAGE)[2]
        until(lambda: len(hashes := peer.ask("hashes", topic=CAMERA)) > 1 and set(hashes) == {ours}, "another type")
        running.says("in session")
        header = {"stamp": {"sec": 5, "nanosec": 6}, "frame_id": "camera"}
        for form, data in shown:
            for _ in range(25):
                peer.ask("publish", topic=CAMERA, messages=[{"header": header, "format": form, "data": [*data]}])
                peer.ask("publish", topic=BEAT, messages=[{"data": 1}])
                time.sleep(0.04)
    finally:
        running.end()
    found = files(server)
    assert [data for i, data in enumerate(found) if i == 0 or found[i - 1] != data] == [data for _, data in shown]
