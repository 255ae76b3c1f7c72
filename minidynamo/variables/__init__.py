"""Symbolic values: what the interpreter's stack and locals hold.

Each Python type of the traced program is a row of `registry.WRAPPERS` that makes the
`VariableTracker` for a real object; importing this package fills the table.
"""
