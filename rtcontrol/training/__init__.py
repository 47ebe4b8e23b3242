"""How controllers are made: `fit`, from rows, a teacher, recordings or a world, and what the bundled ones share."""
