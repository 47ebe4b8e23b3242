"""How well a model follows instructions in a world with goals, a judge and an expert."""
