"""A checkpoint's files: found, checked, and read; its tokenizer, its prompt, what it was taught."""
