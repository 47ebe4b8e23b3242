"""The recipes of bundled checkpoints that belong to no bundled world."""
