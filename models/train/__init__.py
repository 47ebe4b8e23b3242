"""Train controller models: packed-tree training of ST heads from rows, fine-tuning, and adoption of other
checkpoints."""
