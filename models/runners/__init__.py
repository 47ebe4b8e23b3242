"""Engines that run a model for decisions. Each implements `Runner` of `decode.protocol`."""
