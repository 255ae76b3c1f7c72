"""Passes over the aten graph, before lowering."""
