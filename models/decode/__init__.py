"""A decision without a model: the plan of a set of tools, what to evaluate next, and what follows from the scores."""
