"""Chat checkpoints without ST training: the tool call in their own syntax, decided with few forward passes."""
