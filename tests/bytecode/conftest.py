"""Where torch is not installed, load the subpackage under a bare ``minidynamo`` package."""

import importlib.util
import sys
import types
from pathlib import Path

if importlib.util.find_spec("torch") is None and "minidynamo" not in sys.modules:
    bare = types.ModuleType("minidynamo")
    bare.__path__ = [str(Path(__file__).parents[2] / "minidynamo")]
    sys.modules["minidynamo"] = bare
