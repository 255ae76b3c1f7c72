"""Printers: from kernel specs to source text, and the Plan that strings kernels together."""
