"""A road with traffic and lights along one coordinate, instructed how to drive."""
