"""Decoder hosts: where decisions are made, off the control loop's thread."""
