"""How the tracer treats a real callable or a code object: data about libraries, one row each.

`lookup(fn)` says whether a call of `fn` becomes a node of the graph, is traced through, is run
while tracing, or breaks
the graph. `skip_code(code)` says which frames the hook leaves to eager. What the user said
(`markers`) comes first.
"""

from __future__ import annotations

import builtins
import cmath
import copy
import enum
import functools
import inspect
import itertools
import math
import operator
import os
import re
import struct
import sys
import sysconfig
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import BackwardHook, RemovableHandle

try:
    import numpy
except ImportError:  # torch works without it
    numpy = None  # type: ignore[assignment]

from . import markers
from .markers import Decision


class Rule(enum.Enum):
    """What a call does while tracing."""

    GRAPH = "one node of the graph"
    INLINE = "traced through"
    CONSTANT = "run while tracing; the result is a constant"
    BREAK = "graph break; what it calls may be compiled"


_BY_DECISION = {
    Decision.ALLOW: Rule.GRAPH,
    Decision.NONSTRICT: Rule.GRAPH,
    Decision.DISALLOW: Rule.BREAK,
    Decision.CONSTANT: Rule.CONSTANT,
    Decision.INLINE: Rule.INLINE,
    Decision.FORBID: Rule.BREAK,
    Decision.DISABLE: Rule.BREAK,
    Decision.DISABLE_SHALLOW: Rule.BREAK,
}

# Public namespaces whose functions are operations of the graph.
_GRAPH_NAMESPACES: tuple[Any, ...] = (
    torch,
    torch.functional,
    torch.nn.functional,
    torch.linalg,
    torch.fft,
    torch.special,
    torch.masked,
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._linalg,
    torch._C._fft,
    torch._C._special,
    torch._C._nested,
)
# Modules that define such functions; what those namespaces re-export from elsewhere is not one.
_GRAPH_MODULES = frozenset(
    "torch torch.functional torch.nn.functional torch.linalg torch.fft torch.special torch._C._nn"
    " torch._C._linalg torch._C._fft torch._C._special torch._C._nested torch._C._VariableFunctions"
    " torch._C torch._VF torch.nn._reduction torch._jit_internal torch.signal.windows"
    " torch.masked._ops".split()
)
# Functions of those namespaces that are no operations: state, files, processes, types.
_NOT_OPERATIONS = frozenset(
    "compile compiled_with_cxx11_abi cond export fork get_rng_state import_ir_module"
    " init_num_threads initial_seed"
    " is_autocast_cache_enabled load manual_seed merge_type_from_type_comment"
    " parse_ir parse_schema save seed"
    " set_default_device set_default_dtype set_default_tensor_type set_deterministic_debug_mode"
    " set_float32_matmul_precision set_num_interop_threads set_num_threads"
    " set_printoptions set_rng_state"
    " set_warn_always sym_constrain_range typename unify_type_list"
    " use_deterministic_algorithms vmap wait while_loop"
    " get_num_threads get_num_interop_threads get_file_path prepare_multiprocessing_environment"
    " set_autocast_enabled set_flush_denormal from_dlpack to_dlpack from_file"
    " frombuffer get_device_module _fused_sdp_choice"
    " has_torch_function has_torch_function_unary has_torch_function_variadic"
    " handle_torch_function set_grad_enabled _initialized _has_cuda"
    " import_ir_module_from_buffer".split()
)

# Pure functions: with constant arguments they run while tracing.
_PURE_MODULES: tuple[Any, ...] = (math, cmath, operator)
_IMPURE_OPERATORS = frozenset(
    "is_ is_not setitem delitem iadd iand iconcat ifloordiv ilshift imatmul imod"
    " imul ior ipow irshift isub itruediv ixor call"
    " attrgetter itemgetter methodcaller".split()
)
_PURE_FUNCTIONS: tuple[Any, ...] = (
    *(
        getattr(builtins, n)
        for n in "abs ascii bin chr complex divmod float format hash hex int".split()
    ),
    *(
        getattr(builtins, n)
        for n in "max min oct ord pow repr round str sum bytes bool range".split()
    ),
    *(
        getattr(re, n)
        for n in "compile escape findall fullmatch match search split sub subn".split()
    ),
    str.maketrans,
    struct.calcsize,
    struct.pack,
    struct.unpack,
    sys.intern,
    *(
        getattr(os.path, n)
        for n in "join basename dirname split splitext splitdrive isabs normcase normpath"
        " commonprefix commonpath".split()
    ),
    os.fspath,
    os.fsencode,
    os.fsdecode,
    torch.finfo,
    torch.iinfo,
    torch.device,
    torch.promote_types,
    *(getattr(torch, f"sym_{n}") for n in "max min int float not ite sqrt sum".split()),
    torch.result_type,
    torch.can_cast,
    torch.Size,
    torch._C._get_privateuse1_backend_name,
    torch._C._accelerator_getAccelerator,
    torch._C._infer_size,
    torch._C._nn._parse_to,
)

# Numbers of numpy are constants as Python's are; these functions of numpy give numbers for numbers.
NUMPY_SCALARS: tuple[type, ...] = ()
NUMPY_NUMBERS: list[type] = []
NUMPY_BOOL: type | None = None
_NUMPY_FUNCTIONS: tuple[Any, ...] = ()
if numpy is not None:
    _KINDS = "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
    NUMPY_SCALARS = tuple(getattr(numpy, kind) for kind in _KINDS.split())
    NUMPY_BOOL, *NUMPY_NUMBERS = NUMPY_SCALARS
    _NUMPY_FUNCTIONS = (
        *NUMPY_SCALARS,
        *(value for value in vars(numpy).values() if isinstance(value, numpy.ufunc)),
        *(
            getattr(numpy, name)
            for name in (
                "prod sum max min mean round ndim size argmax argmin clip isclose allclose"
                " real imag isscalar array_equal"
            ).split()
        ),
    )

# Packages whose Python functions are never traced through: they do input/output, threads,
# reflection or compiling.
_SKIPPED_PACKAGES = (
    "asyncio bdb cProfile concurrent ctypes importlib inspect io linecache logging"
    " multiprocessing pdb pickle pprint"
    " profile queue re signal socket subprocess tempfile threading timeit tokenize"
    " trace traceback tracemalloc typing"
    " unittest urllib warnings weakref random shutil os posixpath codecs json csv"
    " sre_compile sre_parse selectors"
    " _pytest pytest pluggy hypothesis IPython ipdb tqdm"
).split()
# Packages whose Python functions are traced through where captured code calls them, but whose
# frames are not captured by themselves.
_LIBRARIES = frozenset("networkx numpy onnx onnxruntime pandas sklearn tabulate".split())
_SKIPPED_TORCH = (
    "torch._dynamo torch._inductor torch._functorch torch._subclasses torch._export"
    " torch.export torch.fx torch.jit"
    " torch._logging torch._guards torch._ops torch._library torch.library"
    " torch.multiprocessing torch.package"
    " torch.onnx torch.serialization torch.profiler torch.autograd.profiler"
    " torch.autograd.graph torch.random"
    " torch.utils.data torch.utils.tensorboard torch.utils.cpp_extension"
    " torch.distributed torch.nn.parallel torch.hub torch._tensor_str"
    " torch.cuda torch._higher_order_ops torch.autograd.function"
    # Its operators lay their results out otherwise than their meta functions say.
    " torch._refs.fft"
    " torch.autograd.functional torch.func torch._compile torch.compiler"
    " torch._vmap_internals"
    # It calls a function once for each element of its inputs.
    " torch.autograd.gradcheck"
    " torch._meta_registrations torch.optim._multi_tensor"
    " torch.nn.utils._per_sample_grad torch.nn.utils._expanded_weights"
    # Steps that branch on data and whose lists grow with each; of sparse tensors.
    " torch.optim.lbfgs torch.optim.sparse_adam torch.optim._functional"
).split()
# Functions in them that are traced through all the same: they only ask what an object is.
_TRACED_FUNCTIONS = {
    getattr(inspect, f"is{kind}")
    for kind in (
        "function class method builtin module routine generator code coroutine awaitable frame"
        " traceback methoddescriptor datadescriptor getsetdescriptor memberdescriptor"
        " methodwrapper abstract asyncgen generatorfunction coroutinefunction asyncgenfunction"
    ).split()
} | {
    vars(module).get(name)  # not every Python has each
    for module, names in (
        (
            inspect,
            "_has_code_flag _has_coroutine_mark _signature_is_functionlike unwrap getmro",
        ),
        (inspect, "getdoc _finddoc _findclass cleandoc indentsize get_annotations"),
        (inspect, "getmodule getmembers _getmembers"),
        (typing, "cast get_origin get_args is_typeddict assert_type final no_type_check"),
        (torch.autograd.graph, "region_activation_memory_budget"),
    )
    for name in names.split()
}
# Whether an object is of a type, containers by their items' types.
_TRACED_FUNCTIONS.add(torch.jit.isinstance)
# Signatures: what their methods look at is made once.
_TRACED_FUNCTIONS |= {
    getattr(method, "fget", method)
    for class_ in (inspect.Signature, inspect.Parameter, inspect.BoundArguments)
    for method in vars(class_).values()
    if isinstance(method, (types.FunctionType, property))
}
# Its instances are made as others, but below a tracer of torch.fx.
_TRACED_FUNCTIONS.add(vars(torch.fx.ProxyableClassMeta)["__call__"])
# Its lists and dicts that cannot be changed: their methods only say so, or look.
_TRACED_FUNCTIONS |= {
    method
    for class_ in (immutable_list, immutable_dict)
    for method in vars(class_).values()
    if isinstance(method, types.FunctionType)
}
# A WeakKeyDictionary is a dict of references that the traced code calls. (What WeakValueDictionary
# holds may die between guard and use: it is eager's.)
_TRACED_FUNCTIONS |= {
    method
    for method in vars(weakref.WeakKeyDictionary).values()
    if isinstance(method, types.FunctionType)
}
# Functions that look at the nodes of autograd that they make: graphs make others.
_EAGER_FUNCTIONS = frozenset(filter(inspect.isfunction, vars(BackwardHook).values()))
# And those that register hooks: each is kept under a number of its own.
_EAGER_FUNCTIONS |= {
    vars(RemovableHandle)[name] for name in ("__init__", "remove", "__exit__")
} | {
    function
    for owner in (torch.nn.Module, torch.nn.modules.module)
    for function in vars(owner).values()
    if inspect.isfunction(function) and "RemovableHandle" in function.__code__.co_names
}
# What torch keeps out of graphs by `_disable_dynamo`: all such functions have one code, which keeps
# what it makes at the first call.
_EAGER_FUNCTIONS |= {torch.optim.Optimizer.zero_grad}
_EAGER_CODES = frozenset(function.__code__ for function in _EAGER_FUNCTIONS)
# Modules in them that are traced through all the same.
_TRACED_MODULES = frozenset(
    "unittest.case unittest.util torch.func torch._functorch.apis torch._functorch.vmap"
    " torch._functorch.eager_transforms"
    " torch._functorch.functional_call torch._functorch.utils"
    " torch._higher_order_ops.associative_scan torch._higher_order_ops.invoke_subgraph"
    " torch._higher_order_ops.cond torch._higher_order_ops.while_loop"
    " torch.cuda.amp.autocast_mode torch._dynamo.external_utils"
    " torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    " torch.distributed._functional_collectives torch.distributed.tensor._api"
    " torch.distributed.tensor.parallel.style torch.distributed.tensor.experimental._func_map"
    " torch._dynamo._trace_wrapped_higher_order_op"
    " torch._ops.aten".split()  # torch._refs: wrapped operators say that they are from there
)


@functools.cache
def _graph_functions() -> dict[int, Any]:
    """The operations, by id."""
    found: dict[int, Any] = {}
    for namespace in _GRAPH_NAMESPACES:
        for name in dir(namespace):
            value = getattr(namespace, name)
            if not callable(value) or isinstance(value, type) or name in _NOT_OPERATIONS:
                continue
            if name.startswith("_") and isinstance(value, types.FunctionType):
                continue  # helpers of the namespace: traced through
            if name.startswith("__"):
                continue
            module = getattr(value, "__module__", None)
            if module is None or module in _GRAPH_MODULES:
                found[id(value)] = value
    return found


@functools.cache
def _pure_functions() -> dict[int, Any]:
    found = {id(function): function for function in (*_PURE_FUNCTIONS, *_NUMPY_FUNCTIONS)}
    for module in _PURE_MODULES:
        for name, value in vars(module).items():
            if not name.startswith("__") and callable(value) and name not in _IMPURE_OPERATORS:
                found[id(value)] = value
    return found


def is_operation(fn: Any) -> bool:
    """Whether a call of `fn` is one node of the graph."""
    return id(fn) in _graph_functions() or isinstance(
        fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    )


def is_pure(fn: Any) -> bool:
    """Whether `fn`, given constants, may run while tracing."""
    return id(fn) in _pure_functions()


def is_added_to_tensors(name: str) -> bool:
    """Whether the program has stored a method or property written in Python in torch.Tensor."""
    raw = vars(torch.Tensor).get(name)
    if isinstance(raw, (staticmethod, classmethod)):
        raw = raw.__func__
    made = raw.fget if isinstance(raw, property) else raw
    if not isinstance(made, types.FunctionType):
        return False
    return str(made.__globals__.get("__name__")).partition(".")[0] != "torch"


def lookup(fn: Callable[..., Any]) -> Rule:
    """How a call of the real callable `fn` is captured (handlers of the registry come before)."""
    said = markers.decision(fn)
    if said is not None:
        return _BY_DECISION[said]
    if is_operation(fn):
        return Rule.GRAPH
    if isinstance(fn, types.FunctionType):
        package = (fn.__module__ or "").partition(".")[0]
        if package in _FIRST_USES:
            _prepare(package)
        is_skipped = is_skipped_module(fn.__module__) and fn not in _TRACED_FUNCTIONS
        return Rule.BREAK if is_skipped or fn.__code__ in _EAGER_CODES else Rule.INLINE
    return Rule.BREAK


def _prepare_einops() -> None:
    """It looks for the backend of a type of tensors once: were that seen while tracing, the guard
    that none is known would fail at the next call.
    """
    rearrange = getattr(sys.modules["einops"], "rearrange", None)
    if rearrange is None:
        return  # a module of that name
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        tensor = torch.empty(1)
        for value in (tensor, torch.nn.Parameter(tensor)):
            rearrange(value, "i -> i")


# What libraries do at their first use, done before that is traced.
_FIRST_USES = {"einops": _prepare_einops}


@functools.cache
def _prepare(package: str) -> None:
    if package in sys.modules:
        _FIRST_USES[package]()


@functools.cache
def is_skipped_module(name: str | None) -> bool:
    """Whether functions of the module are never traced through."""
    if name is None:
        return False
    parts = name.split(".")
    if name in _TRACED_MODULES:
        return False
    if parts[0] == "torch":
        prefixes = itertools.accumulate(parts, "{}.{}".format)
        return any(prefix in _SKIPPED_TORCH for prefix in prefixes)
    return parts[0] in _SKIPPED_PACKAGES or parts[0] == "minidynamo"


# The file name of the functions that call a module with hooks.
MODULE_CALLER = "<call of a module>"


def has_distributed_hooks(frame: Any) -> bool:
    """Whether a FrameInfo calls a module with hooks of torch.distributed (`fully_shard`). These run
    in eager, but for those of `parallelize_module`: what is captured is `forward`, in one piece.
    """
    if frame.code.co_filename != MODULE_CALLER:
        return False
    module = frame.f_locals["module"]
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return any(map(_is_of_distributed, hooks))


def _is_of_distributed(fn: Any) -> bool:
    while isinstance(fn, (functools.partial, types.MethodType)):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    home = getattr(fn, "__module__", None) or ""
    return home.startswith("torch.distributed.") and home not in _TRACED_MODULES


_STDLIB = sysconfig.get_path("stdlib") + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_TORCH_FILES = (
    "nn" + os.sep,
    "optim" + os.sep,
    os.path.join("distributed", "algorithms", "_checkpoint") + os.sep,
)
_TORCH_SKIPPED_FILES = (
    os.path.join("nn", "modules", "module.py"),
    os.path.join("nn", "modules", "_functions.py"),
    os.path.join("nn", "init.py"),
    os.path.join("nn", "parameter.py"),
    os.path.join("nn", "parallel") + os.sep,
    os.path.join("nn", "utils", "_per_sample_grad.py"),
    os.path.join("nn", "utils", "_expanded_weights") + os.sep,
    os.path.join("optim", "lbfgs.py"),
    os.path.join("optim", "sparse_adam.py"),
    os.path.join("optim", "_functional.py"),
)
_HERE = os.path.dirname(__file__) + os.sep
_SITE = tuple({sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep})


@functools.cache
def is_skipped_file(filename: str) -> bool:
    """Whether frames of the file are left to eager: the standard library, torch, and minidynamo
    itself.

    A frame of torch.nn.modules is captured only where the user's frame calls it (inlined), or when
    it is
    the forward of a module that is called in eager.
    """
    if filename.startswith(_HERE) or filename.startswith("<frozen"):
        return True
    if filename.startswith(_TORCH):
        relative = filename[len(_TORCH) :]
        is_traced = relative.startswith(_TORCH_FILES)
        return not is_traced or relative.startswith(_TORCH_SKIPPED_FILES)
    if filename.startswith(_SITE):
        package = filename[len(next(s for s in _SITE if filename.startswith(s))) :].split(
            os.sep
        )[0]
        name = package.removesuffix(".py")
        return name in _SKIPPED_PACKAGES or name in _LIBRARIES
    return filename.startswith(_STDLIB)


# Its memo is by the addresses of what it copies: what the frame made has none before a break.
DEEPCOPY = copy.deepcopy.__code__


def is_transform_file(filename: str) -> bool:
    """Whether it is a file of torch.func's."""
    return filename.startswith(_TORCH + "_functorch" + os.sep)


# Modules whose functions only call what they have in that attribute, as far as a trace goes.
_TRANSPARENT = {
    "torch._dynamo.eval_frame": "_torchdynamo_orig_callable",
    "minidynamo.eval_frame": "traced_as",  # of run(fn)
    "torch._higher_order_ops.invoke_subgraph": "__marked_compile_region_fn__",
}


def wrapped_attribute(fn: types.FunctionType) -> str | None:
    """The attribute with the function that `fn` only calls: what torch.compile gave, say."""
    name = _TRANSPARENT.get(fn.__globals__.get("__name__", ""))
    return name if name in fn.__dict__ and markers.decision(fn) is None else None


# Import, torch's own compiler, its fake tensors: what runs below is no part of the program.
_TORCH_COMPILER = (
    os.path.join(_TORCH, "_dynamo", "convert_frame.py"),
    os.path.join(_TORCH, "_inductor") + os.sep,
    os.path.join(_TORCH, "_subclasses") + os.sep,
    os.path.join(_TORCH, "fx", "experimental", "symbolic_shapes.py"),
    os.path.join(_TORCH, "fx", "experimental", "sym_node.py"),
)


def is_disabling(code: types.CodeType) -> bool:
    """Whether frames below one of `code` are not captured: what `torch.compiler.disable` gives is
    of that kind.
    """
    if code.co_filename.startswith(("<frozen importlib", *_TORCH_COMPILER)):
        return True
    is_torch = code.co_filename == os.path.join(_TORCH, "_dynamo", "eval_frame.py")
    return is_torch and code.co_qualname.startswith("DisableContext.__call__.<locals>")


def is_disabling_call(code: types.CodeType) -> bool:
    """Whether what a frame of `code` calls is not captured, but what that calls may be: what
    `torch.compiler.disable(f, recursive=False)` gives is of that kind.
    """
    is_torch = code.co_filename == os.path.join(_TORCH, "_dynamo", "external_utils.py")
    return is_torch and code.co_qualname.startswith("get_nonrecursive_disable_wrapper.<locals>")


_NOT_CAPTURED_FLAGS = 0x20 | 0x80 | 0x100 | 0x200  # generators, coroutines, async generators


_CONSTRUCTORS = frozenset({"__init__", "reset_parameters"})


def skip_code(code: types.CodeType, module: str | None = None) -> str | None:
    """Why a frame of `code` runs in eager, or None if it is to be captured.

    module: the name of the module whose globals the frame has.
    """
    if code.co_flags & _NOT_CAPTURED_FLAGS:
        return "generators and coroutines run in eager"
    if code.co_name in ("__torch_function__", "__torch_dispatch__"):
        return "torch calls it for single operations"
    if is_skipped_file(code.co_filename) or code in _EAGER_CODES:
        return "a library's own file"
    if code.co_name in _CONSTRUCTORS and code.co_filename.startswith(_TORCH):
        return "a constructor of torch, which makes parameters"
    if code.co_filename == "<string>" and is_skipped_module(module):
        return "generated code of a library"  # methods of dataclasses
    return None
