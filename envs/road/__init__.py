"""A road with traffic and lights along one coordinate; instructions say how to drive."""
