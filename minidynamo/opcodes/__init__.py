"""Handlers of the canonical opcodes, by group; importing this package fills `registry.OPCODES`."""

from . import calls, class_bodies, containers, control, loads, matching
from .registry import OPCODES

__all__ = ["OPCODES", "calls", "class_bodies", "containers", "control", "loads", "matching"]
