"""A road with lanes, traffic and lights along one coordinate, told how to drive."""
