"""The table of kernel names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.characterise.classify import (
    UNCLASSIFIED,
    group_of,
    load_kernel_table,
    parse_rules,
)
from servefit.errors import ServefitError

TABLE = load_kernel_table()
#: Names as profilers print them, shortened, by the engine or library they come from.
NAMES = {
    "attention": (
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::"
        "CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>>>>>>(T1::Params)",
        "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<>>>",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<flashinfer::PosEncodingMode>",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<KTraits>",
        "void flashinfer::PersistentVariableLengthMergeStatesKernel<8, 16>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<>)",
        "void vllm::paged_attention_v2_kernel<__half, __half, 128, 16>",
        "void vllm::paged_attention_v2_reduce_kernel<unsigned short, 128>",
        "kernel_unified_attention_2d",
        "kernel_unified_attention_3d",
        "reduce_segments",
        "_fwd_kernel",
        "_fwd_kernel_0d1d2d3de",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_kernel0_0",
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
        "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<__half, 128>",
        "kernel_mha",
        "fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_sm90_kernel",
        "void tensorrt_llm::kernels::xqa_kernel_dt_bf16_d_128_beam_1",
        "aten::scaled_dot_product_attention",
        "aten::_efficient_attention_forward",
        "_C::cpu_attention_with_kv_cache",
        "vllm::unified_attention_with_output",
    ),
    "KV cache write": (
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>",
        "_C::cpu_attn_reshape_and_cache",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>",
        "void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<__nv_bfloat16>",
        "vllm::unified_kv_cache_update",
    ),
    "GEMM": (
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
        "nvjet_tst_128x64_64x8_2x1_v_bz_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn>",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>>>",
        "void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4>",
        "triton_mm_kernel",
        "bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x32_cga1x1x1_16dp256b_TN_sm100a",
        "bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x16x128_s5_TN_sm100f",
        "aten::addmm",
        "aten::bmm",
        "_C::onednn_mm",
        "mkldnn::mkldnn_linear",
    ),
    "GEMV": (
        "void internal::gemvx::kernel<int, int, __nv_bfloat16, cublasGemvParamsEx<int>>",
        "void gemv2T_kernel_val<int, int, __half, __half>",
        "void gemmk1_kernel<int, float, 256, 5>",
    ),
    "MoE": (
        "fused_moe_kernel",
        "_fwd_kernel_ep_scatter_1",
        "_fwd_kernel_ep_gather",
        "void vllm::moe::topkGatingSoftmax<8, 64, 4>",
        "void vllm::moe::moe_align_block_size_kernel<int>",
        "void tensorrt_llm::kernels::cutlass_kernels::MoeFCGemm<>",
    ),
    "state space": (
        "_causal_conv1d_fwd_kernel",
        "_chunk_scan_fwd_kernel",
        "_chunk_state_fwd_kernel",
        "_bmm_chunk_fwd_kernel",
        "_selective_scan_update_kernel",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
    ),
    "norm": (
        "l2norm_fwd_kernel1",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",
        "void vllm::rms_norm_kernel<c10::BFloat16>",
        "void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        "aten::native_layer_norm",
    ),
    "rotary": (
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheEnhancedKernel<true>",
    ),
    "sampling": (
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::ArgMaxOps<float>>>",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<float, long>>",
        "_C::greedy_argmax",
    ),
    "communication": (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<>",
    ),
    "activation": (
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>>",
        "aten::relu",
        "aten::clamp_min",
    ),
    "copy": (
        "Memcpy DtoH (Device -> Pinned)",
        "[CUDA memset]",
        "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2>, unsigned int, 4>",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
    ),
    "elementwise": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "triton_poi_fused_add_mul_1",
        "triton_red_fused_add_mean_1",
        "aten::add",
    ),
    "quantisation": ("void vllm::scaled_fp8_quant_kernel<c10::BFloat16>",),
    "embedding": ("aten::embedding", "void at::native::indexSelectSmallIndex<float>"),
    UNCLASSIFIED: ("void acme::warp_thing<float, 3>(float*)", ""),
}


@pytest.mark.parametrize(
    ("kernel_class", "name"), [(c, n) for c, names in NAMES.items() for n in names]
)
def test_known_kernels_are_of_their_class(kernel_class, name):
    assert TABLE.classify(name) == kernel_class


def test_case_does_not_matter():
    assert TABLE.classify("VOID FLASH::FLASH_FWD_KERNEL") == "attention"


@given(st.text())
def test_any_name_has_a_class(name):
    assert TABLE.classify(name)


def test_rules_of_the_user_come_first(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[[rule]]\nclass = 'acme'\npatterns = ['warp_thing', '^aten::addmm$']\n")
    table = load_kernel_table([file])
    assert table.classify("void acme::warp_thing<float>") == "acme"
    assert table.classify("aten::addmm") == "acme"
    assert table.classify("aten::mm") == "GEMM"
    assert group_of("acme") == "other"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]", "is not TOML"),
        ("rule = 3", "must hold"),
        ("[[rule]]\nclass = 'a'\npatterns = []", "must be a list of regular expressions"),
        ("[[rule]]\nclass = 'a'\npatterns = ['(']", "is no regular expression"),
        ("[[rule]]\nclass = 'a'\npatterns = [3]", "is no regular expression"),
        ("[[rule]]\nclass = ''\npatterns = ['a']", "class must be a name"),
        ("[[rule]]\nclass = 'a'\npattern = 'b'", "exactly the keys class and patterns"),
        ("[other]\na = 1", "must hold"),
    ],
)
def test_wrong_tables_are_refused(text, message):
    with pytest.raises(ServefitError, match=message):
        parse_rules(text, "mine.toml")


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(ServefitError, match=r"absent\.toml: cannot be read"):
        load_kernel_table([tmp_path / "absent.toml"])
