"""What the paper claims, tried at the scale of a processor: one small model, one made-up corpus, several seeds."""
