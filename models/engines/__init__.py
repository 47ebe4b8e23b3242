"""Engines put tokens through a model: one small protocol, different speeds and formats."""
