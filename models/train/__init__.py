"""Train models on rows: from scratch or by fine-tuning, with packed trees. Convert other checkpoints to the ST
format."""
