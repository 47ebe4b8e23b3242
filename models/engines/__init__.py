"""Engines put tokens through a model: one small protocol, implementations that differ in speed and in what they load."""
