"""Fine-tuning of pretrained models to the ST format: the paper's recipe on transformers' Trainer, peft, accelerate."""
