"""Each example in the package is printed and checked, and each of its possible calls is mapped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client.ros2 import EXAMPLE, config
from rtcontrol_client.ros2.cli import main
from rtcontrol_client.ros2.config import RobotConfig
from rtcontrol_client.ros2.mapper import GoalOrder, Mapper, Publication
from tests.bridges.ros2.messages import sensor_msgs

EXAMPLES = sorted(path.stem for path in EXAMPLE.parent.glob("*.yaml"))
STAMP_NS = 10**18 + 7_000


def made(name: str) -> Mapper:
    path = EXAMPLE.with_stem(name)
    return Mapper(config.load(path), str(path))


def calls(mapper: Mapper) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every call that the tools' enums allow."""
    for name, tool in mapper.config.tools.items():
        for values in itertools.product(*(schema["enum"] for schema in tool.parameters.values())):
            yield name, dict(zip(tool.parameters, values, strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_valid_and_its_safe_call_stops_the_robot(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "robot.yaml"
    assert main(["--example", name]) == 0
    file.write_text(capsys.readouterr().out)
    assert main(["--config", str(file), "--check"]) == 0
    assert not capsys.readouterr().err  # a warning would name a topic on which the safe call publishes nothing
    mapper = Mapper(config.load(file), str(file))
    safe = {p.topic: p.message for p in mapper.publications(mapper.config.safe.name, {}, STAMP_NS)}
    moved = set[str]()
    for tool, arguments in calls(mapper):
        for one in mapper.publications(tool, arguments, STAMP_NS):
            _sent(one)
            if isinstance(one.message, GoalOrder):
                assert safe[one.topic] == GoalOrder()
                moved |= {one.topic} if one.message != GoalOrder() else set()
            else:
                assert type(safe[one.topic]) is type(one.message)
                moved |= {one.topic} if one.message != safe[one.topic] else set()
    assert moved, "no call does anything that the safe call does not"
    again = RobotConfig.model_validate_json(mapper.config.model_dump_json(by_alias=True, exclude_unset=True))
    theirs = Mapper(again, "the guard's").publications(again.safe.name, {}, STAMP_NS)
    assert [str(p.message) for p in theirs] == [str(message) for message in safe.values()]


def _sent(one: Publication) -> None:
    """Check that the message has a time stamp, since subscribers may refuse an old stamp."""
    message = one.message.goal if isinstance(one.message, GoalOrder) else one.message
    if message is None:
        return
    if "Stamped" in type(message).__name__:
        assert message.header.stamp.nanosec == 7_000


def test_turtlebot_lidar_is_mounted_to_the_left() -> None:  # turtlebot/turtlebot4#511
    source = next(s for s in made("turtlebot4").sources if s.topic.name == "/scan")
    scan = sensor_msgs.LaserScan(angle_min=-math.pi, angle_increment=math.tau / 360, range_max=12.0, ranges=[4.0] * 360)
    scan.ranges[90] = 0.7  # -90 degrees of the lidar
    assert source.read(scan) == {"left": 4.0, "ahead": 0.7, "right": 4.0}
