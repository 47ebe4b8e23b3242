"""Training and evaluation rows: one format, read from public sets and chats, synthesised, counted and written."""
