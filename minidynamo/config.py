"""The front end's flags, one line each.

Set as attributes, by `patch()`, or by the environment variables `MINIDYNAMO_<NAME>`:

    minidynamo.config.recompile_limit = 4
    with minidynamo.config.patch(capture_scalar_outputs=True): ...
    @minidynamo.config.patch("verbose", True)

Names, defaults and meanings follow `torch._dynamo.config` where that has the flag. Unknown names
are refused. Flags of torch without a counterpart (`config_inert`) can be set and patched too, with
a warning that it has no effect.
"""
# ruff: noqa: E501  (one row, one line)

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .config_inert import INERT
from .config_module import field, install

# fmt: off
disable: bool = field(False, "compile() returns what it was given; nothing is captured.")
recompile_limit: int = field(8, "Compiled versions of one code object (for the same nn.Modules); past it the frame runs in eager.", aliases=("cache_size_limit",), least=0)
accumulated_recompile_limit: int = field(256, "The same over all modules (self) and compile() configurations that share the code object.", aliases=("accumulated_cache_size_limit",), least=0)
fail_on_recompile_limit_hit: bool = field(False, "Raise RecompileLimitExceeded where the limit would mean eager.", aliases=("fail_on_cache_limit_hit",))
skip_code_recursive_on_recompile_limit_hit: bool = field(True, "Past the limit the functions that the frame calls are not compiled either; False: they are.", aliases=("skip_code_recursive_on_cache_limit_hit",))
error_on_recompile: bool = field(False, "Raise RecompileError on the second compilation of a code object.")
suppress_errors: bool = field(False, "On an error inside the compiler or the backend, warn and run the frame in eager.")
raise_internal_errors: bool = field(False, "A bug of minidynamo raises; else there is a warning, and the frame (without fullgraph) or the graph runs in eager.")
check_new_guards: bool = field(False, "Raise InternalError where the guards of what was just compiled refuse the call it was compiled for.")
verbose: bool = field(False, "Errors carry the compiler's own stack as well as the user's.")
verify_correctness: bool = field(False, "Run each new compiled graph once against eager and raise when they differ.")
assume_static_by_default: bool = field(True, "Sizes are constants until they are seen to change or are marked dynamic.")
allow_ignore_mark_dynamic: bool = field(False, "A dimension marked dynamic may become a constant without an error.")
automatic_dynamic_shapes: bool = field(True, "A size that changed between calls becomes symbolic at the next compilation.")
automatic_dynamic_shapes_mark_as: str = field("dynamic", "What such a size becomes: a symbol with its value as hint, or one without.", choices=("dynamic", "unbacked"))
specialize_int: bool = field(False, "int arguments and attributes are constants, also after they changed.")
allow_unspec_int_on_nn_module: bool = field(False, "int attributes of nn.Modules become symbolic too when they change.")
force_parameter_static_shapes: bool = field(True, "Sizes of parameters and buffers are constants, also after they changed.")
force_nn_module_property_static_shapes: bool = field(True, "So are sizes of the other tensors that modules of torch.nn hold.")
specialize_float: bool = field(False, "float arguments and attributes are constants, also after they changed.")
capture_scalar_outputs: bool = field(False, "Capture `.item()` and the like as unbacked symbols instead of breaking the graph; with fullgraph=True that is always done.")
capture_dynamic_output_shape_ops: bool = field(False, "Capture operators whose output size depends on data, such as nonzero(); with fullgraph=True that is always done.")
trace_autograd_ops: bool = field(False, "Capture backward() and torch.autograd.grad instead of breaking the graph, where the history that they need is one of the graph.")
reorderable_logging_functions: set[Any] = field(set(), "Functions such as print whose calls, with tensors and constants, are made after the graph instead of breaking it.")
ignore_logging_functions: set[Any] = field(set(), "Functions whose calls are left out of what is compiled.")
ignore_logger_methods: set[Any] = field(set(), "Methods of loggers whose calls are left out of what is compiled.")
nested_graph_breaks: bool = field(True, "A graph break inside a called function resumes in it; False breaks at the outermost call.")
optimize_ddp: bool = field(True, "Under DistributedDataParallel, cut graphs at its buckets so that communication overlaps.")
replay_side_effects: bool = field(True, "Write mutations of Python objects back after the graph; False leaves them out of functions captured whole.")
cache_dir: str = field(os.path.join(os.path.expanduser("~"), ".cache", "minidynamo"), "Folder of everything compiled that is kept on disk.")
# fmt: on

if TYPE_CHECKING:
    cache_size_limit: int
    accumulated_cache_size_limit: int

    to_dict: Callable[[], dict[str, Any]]
    defaults: Callable[[], dict[str, Any]]
    describe: Callable[[], str]
    save_config: Callable[[], bytes]
    load_config: Callable[[bytes | Mapping[str, Any]], None]
    get_hash: Callable[[], bytes]


patch = install(__name__, env_prefix="MINIDYNAMO", inert=INERT)
