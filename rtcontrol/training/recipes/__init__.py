"""The recipes of the bundled checkpoints: each wires environments and trainer together."""
