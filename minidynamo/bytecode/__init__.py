"""Bytecode of all supported CPython versions as one canonical instruction set.

``decode`` a code object, work on the list of instructions (``analysis``, the ``emit_*`` helpers of
``current``), ``assemble`` a new code object.  The instruction set is documented in ``canonical``.
"""

from .analysis import (
    blocks,
    definitely_bound,
    effect,
    handler_edges,
    in_loop,
    index_of,
    live_locals,
    loops,
    normal_successors,
    null_slots,
    reachable,
    remove_unreachable,
    stack_depths,
    stack_kinds,
    successors,
)
from .assemble import argument_count, assemble
from .canonical import OPS
from .decode import decode, instruction_index, live_names, prime_cache
from .instruction import (
    BytecodeError,
    CallArg,
    Handler,
    Instruction,
    Positions,
    copy_instructions,
    dump,
    same_handler,
)

__all__ = [
    "OPS",
    "BytecodeError",
    "CallArg",
    "Handler",
    "Instruction",
    "Positions",
    "argument_count",
    "assemble",
    "blocks",
    "copy_instructions",
    "decode",
    "definitely_bound",
    "dump",
    "effect",
    "handler_edges",
    "in_loop",
    "index_of",
    "instruction_index",
    "live_locals",
    "live_names",
    "loops",
    "normal_successors",
    "null_slots",
    "prime_cache",
    "reachable",
    "remove_unreachable",
    "same_handler",
    "stack_depths",
    "stack_kinds",
    "successors",
]
