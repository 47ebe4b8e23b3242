"""Decoder hosts: decide off the control loop's thread."""
