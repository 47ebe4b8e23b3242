"""How often a model is right on rows: the answer to each, judged, and figures of all."""
