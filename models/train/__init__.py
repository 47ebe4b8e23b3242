"""Train models on rows, from scratch or by fine-tuning. Convert other checkpoints to the ST format."""
