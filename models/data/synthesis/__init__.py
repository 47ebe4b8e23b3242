"""Rows made up: by templates alone, or by a language model behind an OpenAI-compatible endpoint."""
