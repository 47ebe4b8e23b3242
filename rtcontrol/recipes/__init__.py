"""Recipes wire environments and trainer together: each rebuilds one bundled checkpoint."""
