"""A road with traffic and lights along one coordinate, with a driver to instruct."""
