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
    benchmark_epilogue_fusion benchmark_harness bundle_triton_into_fx_graph_cache
    comprehensive_padding constant_and_index_propagation delay_realize_cheap_outputs
    disable_progress dynamic_scale_rblock enable_auto_functionalized_v2 fx_graph_cache
    graph_partition implicit_fallbacks inplace_buffers inplace_padding
    joint_graph_constant_folding keep_addmm_fused_for_half_dtypes keep_output_stride
    loop_index_inversion_in_fusion loop_ordering_after_fusion
    loop_reindexing_after_fusion online_softmax optimize_scatter_upon_const_tensor
    pattern_matcher pick_loop_orders prologue_fusion reorder_for_locality
    reorder_for_peak_memory scalar_asserts size_asserts split_cat_fx_passes split_reductions
    static_weight_shapes use_dce use_experimental_benchmarker use_joint_graph_passes
    use_mixed_mm use_post_grad_passes use_pre_grad_passes use_static_cuda_launcher
    worker_suppress_logging cpp.enable_loop_tail_vec cpp.enable_tiling_heuristics
    cpp.fallback_scatter_reduce_sum cpp.no_redundant_loops cpp.use_constexpr_for_int_array
    cpp.weight_prepack triton.autotune_cublasLt triton.autotune_pointwise
    triton.coalesce_tiling_analysis
    triton.cudagraph_support_input_mutation triton.cudagraph_trees triton.divisible_by_16
    triton.mix_order_reduction triton.persistent_reductions
    triton.reorder_for_reducing_graph_partitions triton.slow_path_cudagraph_asserts
    triton.tiling_prevents_pointwise_fusion triton.tiling_prevents_reduction_fusion
    triton.unique_kernel_names
"""
_OFF = """
    aggressive_fusion always_keep_tensor_constants annotate_training
    autotune_fallback_to_aten autotune_in_subproc autotune_multi_device b2b_gemm_pass
    benchmark_combo_kernel benchmark_fusion benchmark_kernel can_inplace_pad_graph_input
    combo_kernel_per_subkernel_blocks combo_kernels comment_origin compute_all_bounds
    conv_1x1_as_mm coordinate_descent_check_all_directions coordinate_descent_tuning
    cpp_wrapper dce debug debug_fusion debug_index_asserts debug_ir_traceback
    decompose_mem_bound_mm efficient_conv_bn_eval_fx_passes enable_linear_binary_folding
    epilogue_fusion_first epilogue_fusion_with_atomic_add
    expand_dimension_for_pointwise_nodes force_fuse_int_mm_with_mul
    force_pointwise_cat
    freezing_discard_parameters fx_wrapper group_fusion max_autotune_allow_flexible_layouts
    max_autotune_gemm max_autotune_pointwise memory_planning pad_channels_last
    pad_dynamic_shapes pad_outputs permute_fusion profile_bandwidth
    profiler_mark_wrapper_call reorder_for_compute_comm_overlap
    reorder_for_peak_memory_debug search_autotune_cache use_fast_math verbose_progress
    warn_mix_layout cpp.dynamic_threads cpp.enable_concat_linear
    cpp.enable_grouped_gemm_template cpp.enable_kernel_profile
    cpp.enable_unsafe_math_opt_flag cpp.force_inline_kernel cpp.use_decompose_tanh
    cpp.use_small_dequant_buffer triton.cooperative_reductions
    triton.cudagraph_skip_dynamic_graphs triton.debug_sync_graph triton.debug_sync_kernel
    triton.decompose_sort_ops triton.dense_indexing triton.enable_pdl
    triton.enable_persistent_tma_matmul triton.enable_template_tma_store
    triton.fast_path_cudagraph_asserts triton.force_cooperative_reductions
    triton.force_cudagraph_sync triton.force_cudagraphs_warmup triton.native_matmul
    triton.nested_reduction triton.prefer_nd_tiling triton.skip_cudagraph_warmup
    triton.skip_l1_cache triton.store_cubin triton.tile_reductions
    triton.unique_user_kernel_names triton.use_block_ptr triton.use_tensor_descriptor
"""
_NONE = """
    autotune_remote_cache bundled_autotune_remote_cache fx_graph_remote_cache
    realize_acc_reads_size_threshold realize_acc_reads_threshold realize_opcount_threshold
    reorder_prefetch_limit cpp.gemm_cache_blocking cpp.gemm_thread_factors cpp.march
    triton.autotune_at_compile_time
"""

INERT: dict[str, Any] = {
    **dict.fromkeys(_ON.split(), True),
    **dict.fromkeys(_OFF.split(), False),
    **dict.fromkeys(_NONE.split()),
    "combo_kernel_allow_mixed_sizes": 1,
    "combo_kernel_foreach_dynamic_shapes": True,
    "combo_kernels_autotune": 1,
    "coordinate_descent_search_radius": 1,
    "max_autotune_conv_backends": "ATEN,TRITON",
    "max_autotune_gemm_backends": "ATEN,TRITON,CPP",
    "max_autotune_gemm_search_space": "DEFAULT",
    "max_autotune_subproc_result_timeout_seconds": 60.0,
    "max_epilogue_benchmarked_choices": 1,
    "max_fusion_buffer_group_pairwise_attempts": 64,
    "max_fusion_size": 64,
    "max_pointwise_cat_inputs": 8,
    "memory_pool": "intermediates",
    "min_num_split": 0,
    "padding_alignment_bytes": 128,
    "padding_stride_threshold": 1024,
    "realize_cpu_acc_reads_threshold": 12,
    "realize_cpu_opcount_threshold": 50,
    "realize_reads_threshold": 4,
    "score_fusion_memory_threshold": 10,
    "unroll_reductions_threshold": 8,
    "worker_start_method": "subprocess",
    "triton.cudagraph_dynamic_shape_warn_limit": 8,
    "triton.decompose_k_threshold": 32,
    "triton.descriptive_names": "original_aten",
    "triton.max_tiles": None,
    "triton.min_split_scan_rblock": 256,
    "triton.multi_kernel": 0,
    "triton.num_decompose_k_splits": 10,
    "triton.spill_threshold": 16,
    "cpp.descriptive_names": "original_aten",
    "cpp.enable_floating_point_contract_flag": "off",
    "cpp.max_horizontal_fusion_size": 16,
    "cpp.min_chunk_size": 512,
    "cpp.simdlen": None,
    "cpp.threads": -1,
}
