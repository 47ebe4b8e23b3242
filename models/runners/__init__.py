"""Engines that evaluate the token trees of a decision. Each one implements the protocol of `decode.protocol`."""
