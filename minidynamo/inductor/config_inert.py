"""Flags of `torch._inductor.config` that have no counterpart here, with torch's defaults.

Programs written for torch.compile set them, or give them as `options`. They choose between ways to
the same results that minidynamo does not have, or does without being asked. Flags that would change
results, and hooks for passes of the program's own, are not listed, so that they are refused.
"""

from __future__ import annotations

from typing import Any

__all__ = ["INERT"]

_ON = """
    allow_buffer_reuse assert_indirect_indexing autotune_local_cache batch_fusion
    benchmark_epilogue_fusion benchmark_harness constant_and_index_propagation
    dynamic_scale_rblock fx_graph_cache graph_partition implicit_fallbacks inplace_buffers
    joint_graph_constant_folding keep_output_stride layout_optimization
    loop_ordering_after_fusion online_softmax pattern_matcher pick_loop_orders
    prologue_fusion reorder_for_locality reorder_for_peak_memory scalar_asserts size_asserts
    split_cat_fx_passes split_reductions use_mixed_mm cpp.enable_loop_tail_vec
    cpp.enable_tiling_heuristics cpp.fallback_scatter_reduce_sum cpp.weight_prepack
    triton.autotune_cublasLt triton.autotune_pointwise
    triton.cudagraph_support_input_mutation triton.cudagraph_trees triton.divisible_by_16
    triton.persistent_reductions triton.slow_path_cudagraph_asserts
    triton.tiling_prevents_pointwise_fusion triton.unique_kernel_names
"""
_OFF = """
    aggressive_fusion always_keep_tensor_constants autotune_in_subproc autotune_multi_device
    b2b_gemm_pass benchmark_combo_kernel benchmark_fusion benchmark_kernel combo_kernels
    comment_origin compute_all_bounds conv_1x1_as_mm coordinate_descent_check_all_directions
    coordinate_descent_tuning cpp_wrapper debug debug_fusion debug_index_asserts
    debug_ir_traceback decompose_mem_bound_mm efficient_conv_bn_eval_fx_passes
    force_fuse_int_mm_with_mul force_layout_optimization force_pointwise_cat force_shape_pad
    group_fusion max_autotune_gemm max_autotune_pointwise memory_planning pad_outputs
    permute_fusion profile_bandwidth profiler_mark_wrapper_call
    reorder_for_compute_comm_overlap search_autotune_cache use_fast_math warn_mix_layout
    cpp.dynamic_threads cpp.enable_kernel_profile cpp.enable_unsafe_math_opt_flag
    triton.cudagraph_skip_dynamic_graphs triton.debug_sync_graph triton.debug_sync_kernel
    triton.dense_indexing triton.fast_path_cudagraph_asserts triton.force_cudagraph_sync
    triton.force_cudagraphs_warmup triton.prefer_nd_tiling triton.skip_cudagraph_warmup
    triton.store_cubin triton.tile_reductions triton.use_block_ptr
"""
_NONE = """
    fx_graph_remote_cache cpp.gemm_cache_blocking cpp.gemm_thread_factors
    triton.autotune_at_compile_time
"""

INERT: dict[str, Any] = {
    **dict.fromkeys(_ON.split(), True),
    **dict.fromkeys(_OFF.split(), False),
    **dict.fromkeys(_NONE.split()),
    "max_autotune_conv_backends": "ATEN,TRITON",
    "max_autotune_gemm_backends": "ATEN,TRITON,CPP",
    "max_autotune_gemm_search_space": "DEFAULT",
    "max_fusion_size": 64,
    "max_pointwise_cat_inputs": 8,
    "realize_reads_threshold": 4,
    "unroll_reductions_threshold": 8,
    "triton.descriptive_names": "original_aten",
    "triton.max_tiles": None,
    "triton.multi_kernel": 0,
    "cpp.descriptive_names": "original_aten",
    "cpp.enable_floating_point_contract_flag": "off",
    "cpp.max_horizontal_fusion_size": 16,
    "cpp.min_chunk_size": 512,
    "cpp.simdlen": None,
    "cpp.threads": -1,
}
