"""The CARLA bridge's session with a server that is a rule in a thread."""

from __future__ import annotations

import time

from rtcontrol.bridges.carla.options import CarlaBridgeOptions
from rtcontrol.bridges.carla.session import CarlaSession
from tests.bridges.ros2.brain import Brain
from tests.helpers.processes import until


def test_a_session_that_ends_with_its_welcome_is_no_refusal() -> None:
    brain = Brain()
    brain.brief = True
    session = CarlaSession(CarlaBridgeOptions(endpoint=brain.endpoint), "Town01", "car")
    try:
        session.keep()
        until(lambda: brain.hello is not None and not brain.brief, "nobody greeted")
        time.sleep(0.3)  # both have arrived when it is looked at
        until(session.keep, "it was not greeted anew")
    finally:
        session.close()
        brain.close()
