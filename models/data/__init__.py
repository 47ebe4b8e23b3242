"""Rows for training and evaluation, which are read from public data sets and chats, or synthesised."""
