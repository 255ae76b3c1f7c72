"""Flags of `torch._dynamo.config` that have no counterpart here, with torch's defaults.

Programs written for torch.compile set and patch them. They choose between implementations that
minidynamo does not have, or widen what it captures or keeps anyway; what a program computes does
not depend on them. Flags that would change results are not listed, so that they are refused.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DONE_ANYWAY", "INERT"]

# Those that ask for what is always done: setting them is no mistake.
DONE_ANYWAY = frozenset(
    "enable_trace_load_build_class enable_trace_unittest graph_break_on_nn_param_ctor".split()
)

_ON = """
    assume_dunder_attributes_remain_unchanged automatic_dynamic_local_pgo
    capture_autograd_function capture_func_transforms capture_sparse_compute dynamic_shapes
    enable_aot_compile enable_cpp_framelocals_guard_eval enable_cpp_guard_manager
    enable_dynamo_decompositions enable_faithful_generator_behavior enable_trace_contextlib
    error_on_nested_fx_trace error_on_nested_jit_trace fake_tensor_cache_enabled
    fake_tensor_disable_inference_mode graph_break_on_nn_param_ctor guard_nn_modules
    guard_nn_modules_using_dict_tags inline_inbuilt_nn_modules
    inline_single_use_invoke_subgraph inline_torch_dispatch_torch_compile
    install_free_tensors_for_export issue_3_13_0_warning log_compilation_metrics
    raise_on_ctx_manager_usage record_runtime_overhead report_guard_failures
    rewrite_assert_with_torch_assert run_gc_after_compile same_two_models_use_fp64
    skip_fsdp_guards skip_nnmodule_hook_guards skip_no_tensor_aliasing_guards_on_parameters
    skip_tensor_guards_with_matching_dict_tags skip_torchrec trace_numpy
    use_lamba_guard_for_object_aliasing use_lazy_graph_module
"""
_OFF = """
    allow_empty_graphs allow_rnn automatic_dynamic_exclusion_guard caching_precompile
    capture_profiler_record_function compiled_autograd
    constant_fold_autograd_profiler_enabled cprofile cudagraph_backend_keep_input_mutation
    cudagraph_backend_support_input_mutation debug_disable_compile_counter
    do_not_emit_runtime_asserts dont_skip_tracing dynamo_profiler
    enable_compiler_collectives enable_cpp_symbolic_shape_guards
    enable_invoke_subgraph_regional_compile enable_p2p_compilation
    enable_trace_load_build_class enable_trace_unittest
    error_on_dynamo_callback_in_fullgraph_compiled_code fake_tensor_cache_crosscheck_enabled
    force_compile_during_fx_trace force_unspec_int_unbacked_size_like_on_torchrec_kjt
    generate_pycode graph_deduplication_lint inline_invoke_subgraph install_free_tensors
    leaf_function_validate_outputs log_graph_in_out_metadata only_allow_pt2_compliant_ops
    optimize_ddp_lazy_compile prefer_deferred_runtime_asserts_over_guards prepare_freezing
    raise_on_unsafe_aot_autograd record_compile_time_instruction_count replay_record_enabled
    repro_forward_only repro_ignore_non_fp skip_guards_on_constant_func_defaults
    strict_precompile track_nodes_for_deduplication
    use_graph_deduplication use_numpy_random_stream use_recursive_dict_tags_for_guards
    wrap_top_frame
"""

INERT: dict[str, Any] = {
    **dict.fromkeys(_ON.split(), True),
    **dict.fromkeys(_OFF.split(), False),
    "automatic_dynamic_remote_pgo": None,
    "dead_code_elimination": None,
    "log_file_name": None,
    "minimum_call_count": 1,
    "nontraceable_tensor_subclasses": set(),
    "repro_after": None,
    "repro_level": 2,
    "repro_tolerance": 0.001,
    "traceable_tensor_subclasses": set(),
    "side_effect_replay_policy": "info",
}
