"""Backends: what turns a captured graph into something to call; found by name in `registry`."""
