"""Decoder hosts, which run deciders off the control loop's thread."""
