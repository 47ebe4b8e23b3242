"""Training of controllers: `fit` learns from rows, a teacher function, recordings or a world."""
