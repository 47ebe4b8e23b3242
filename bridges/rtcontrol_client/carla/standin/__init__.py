"""The CARLA stand-in, which is not CARLA: a server for tests that speaks the protocol of CARLA 0.9.16 to its client.

It has one town of its own, kinematic bicycles instead of vehicles, and traffic lights. What runs
against it proves protocol, timing and what a bridge does; nothing about driving in CARLA. Coordinates are OpenDRIVE's
(right-handed, radians) within the package and CARLA's (y mirrored, degrees) on the wire.
"""
