"""The table of opcode handlers: canonical opcode name -> function(translator, instruction)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..symbolic_convert import Translator

OpcodeHandler = Callable[["Translator", "Instruction"], None]
OPCODES: dict[str, OpcodeHandler] = {}


def op(*names: str) -> Callable[[OpcodeHandler], OpcodeHandler]:
    """Register the handler of one or several canonical opcodes."""

    def register(function: OpcodeHandler) -> OpcodeHandler:
        for name in names:
            assert name not in OPCODES, f"opcode {name} is registered twice"
            OPCODES[name] = function
        return function

    return register
