"""Training of controllers: `fit` learns from rows, a labelling function, recordings or a world."""
