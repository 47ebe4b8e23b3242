"""A road with lanes, traffic and lights along one coordinate, instructed how to drive."""
