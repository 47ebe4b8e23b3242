"""The CARLA stand-in (which is not CARLA): a test server that speaks the protocol of CARLA 0.9.16.

It has a small town, kinematic bicycles as vehicles, and traffic lights. Tests against it check protocol, timing and the
bridge's behaviour, not driving in CARLA. Coordinates are OpenDRIVE's (right-handed, radians) within the package and
CARLA's (y mirrored, degrees) on the wire.
"""
