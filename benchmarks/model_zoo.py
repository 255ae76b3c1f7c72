"""Architectures of `transformers` with tiny random weights: what the model benchmark and the tests
capture.

    model, inputs = build("llama")          # in eval mode; inputs are keyword arguments of forward

A row names the model's class and what differs from the common sizes of its kind; the classes are
looked up only when the model is built, so that `transformers` may be missing or older.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["ZOO", "Row", "build"]

VOCABULARY = 99
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One architecture: `family` and `inputs` are keys of FAMILIES and INPUTS."""

    model: str
    family: str
    inputs: str = "tokens"
    sizes: dict[str, Any] = field(default_factory=dict)
    generates: bool = False


# Sizes that the configurations of a kind of model have in common.
FAMILIES: dict[str, dict[str, Any]] = {
    "none": {},
    "encoder": dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=64,
        type_vocab_size=2,
        pad_token_id=0,
    ),
    "decoder": dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=37,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "encoder-decoder": dict(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        forced_bos_token_id=None,
    ),
    "t5": dict(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=37,
        num_layers=2,
        num_heads=4,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
    ),
    "vision": dict(
        image_size=32,
        patch_size=8,
        num_channels=3,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
    ),
    "speech": dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    ),
    "two-tower": dict(
        projection_dim=16,
        text_config=dict(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=37,
            max_position_embeddings=64,
            projection_dim=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        vision_config=dict(
            image_size=32,
            patch_size=8,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=37,
            projection_dim=16,
        ),
    ),
}


def _tokens(length: int = 12) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length))


def _mask(length: int = 12) -> torch.Tensor:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, -3:] = 0
    return mask


def _image(size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, size, size)


INPUTS: dict[str, Callable[[], Inputs]] = {
    "tokens": lambda: dict(input_ids=_tokens(), attention_mask=_mask()),
    "ids": lambda: dict(input_ids=_tokens()),
    "pair": lambda: dict(
        input_ids=_tokens(), attention_mask=_mask(), decoder_input_ids=_tokens(7)
    ),
    "image": lambda: dict(pixel_values=_image()),
    "large image": lambda: dict(pixel_values=_image(64)),
    "wave": lambda: dict(input_values=torch.randn(2, 1024)),
    "spectrum": lambda: dict(
        input_features=torch.randn(2, 16, 60), decoder_input_ids=_tokens(7)
    ),
    "spectrogram": lambda: dict(input_values=torch.randn(2, 32, 16)),
    "text and image": lambda: dict(
        input_ids=_tokens(), attention_mask=_mask(), pixel_values=_image()
    ),
    "padded image": lambda: dict(
        pixel_values=_image(64), pixel_mask=torch.ones(2, 64, 64, dtype=torch.long)
    ),
    "long tokens": lambda: dict(input_ids=_tokens(64), attention_mask=_mask(64)),
    "video": lambda: dict(pixel_values=torch.randn(2, 2, 3, 32, 32)),
}

_UNGROUPED = {
    f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")
}
_EXPERTS = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2, intermediate_size=48)


def _decoder(model: str, inputs: str = "tokens", **sizes: Any) -> Row:
    return Row(model, "decoder", inputs, sizes, generates=True)


def _encoder(model: str, inputs: str = "tokens", **sizes: Any) -> Row:
    return Row(model, "encoder", inputs, sizes)


def _pair(
    model: str, family: str = "encoder-decoder", inputs: str = "pair", **sizes: Any
) -> Row:
    return Row(model, family, inputs, sizes, generates=True)


def _vision(model: str, inputs: str = "image", **sizes: Any) -> Row:
    return Row(model, "vision", inputs, sizes)


def _speech(model: str, inputs: str = "wave", **sizes: Any) -> Row:
    return Row(model, "speech", inputs, sizes)


def _other(model: str, inputs: str, **sizes: Any) -> Row:
    return Row(model, "none", inputs, sizes)


def _resnet_config() -> Any:
    import transformers

    return transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage4"],
    )


ZOO: dict[str, Row] = {
    # encoders
    "bert": _encoder("BertForMaskedLM", sep_token_id=2),
    "roberta": _encoder("RobertaForSequenceClassification"),
    "albert": _encoder("AlbertForMaskedLM", embedding_size=16),
    "distilbert": _encoder(
        "DistilBertForMaskedLM", dim=32, hidden_dim=37, n_heads=4, n_layers=2
    ),
    "electra": _encoder("ElectraForPreTraining", embedding_size=16),
    "mpnet": _encoder("MPNetForMaskedLM"),
    "deberta": _encoder(
        "DebertaForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "deberta-v2": _encoder(
        "DebertaV2ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "data2vec-text": _encoder("Data2VecTextForMaskedLM"),
    "xlm-roberta": _encoder("XLMRobertaForTokenClassification"),
    "camembert": _encoder("CamembertForMaskedLM"),
    "convbert": _encoder("ConvBertForMaskedLM", embedding_size=16),
    "squeezebert": _encoder("SqueezeBertForMaskedLM", embedding_size=32, **_UNGROUPED),
    "mobilebert": _encoder(
        "MobileBertForMaskedLM",
        embedding_size=16,
        intra_bottleneck_size=16,
        true_hidden_size=16,
    ),
    "funnel": _other(
        "FunnelForMaskedLM",
        "tokens",
        vocab_size=VOCABULARY,
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=37,
        block_sizes=[1, 1],
    ),
    "fnet": _encoder("FNetForMaskedLM", "ids"),
    "nystromformer": _encoder(
        "NystromformerForMaskedLM", num_landmarks=4, segment_means_seq_len=4
    ),
    "roformer": _encoder("RoFormerForMaskedLM", embedding_size=32),
    "esm": _encoder("EsmForMaskedLM", mask_token_id=4, position_embedding_type="rotary"),
    "modernbert": _encoder(
        "ModernBertForMaskedLM", cls_token_id=1, sep_token_id=2, eos_token_id=2, bos_token_id=1
    ),
    "longformer": _encoder(
        "LongformerForMaskedLM", "long tokens", attention_window=8, max_position_embeddings=80
    ),
    "big-bird": _encoder(
        "BigBirdForMaskedLM",
        "long tokens",
        block_size=8,
        num_random_blocks=1,
        max_position_embeddings=80,
    ),
    "xlnet": Row(
        "XLNetLMHeadModel",
        "none",
        "tokens",
        dict(
            vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=37, pad_token_id=0
        ),
    ),
    "reformer": _other(
        "ReformerModelWithLMHead",
        "long tokens",
        vocab_size=VOCABULARY,
        attention_head_size=16,
        hidden_size=32,
        num_attention_heads=2,
        feed_forward_size=37,
        axial_pos_embds=False,
        attn_layers=["local", "lsh"],
        local_attn_chunk_length=8,
        lsh_attn_chunk_length=8,
        num_buckets=4,
        num_hashes=1,
        is_decoder=True,
        max_position_embeddings=80,
        hash_seed=0,
    ),
    # decoders
    "gpt2": _decoder("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt-neo": _decoder(
        "GPTNeoForCausalLM",
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
    ),
    "gpt-neox": _decoder("GPTNeoXForCausalLM"),
    "gptj": _decoder(
        "GPTJForCausalLM", n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4
    ),
    "codegen": _decoder(
        "CodeGenForCausalLM", n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4
    ),
    "opt": _decoder("OPTForCausalLM", ffn_dim=37, word_embed_proj_dim=32),
    "bloom": _decoder("BloomForCausalLM", n_layer=2, n_head=4),
    "falcon": _decoder("FalconForCausalLM"),
    "mpt": _decoder("MptForCausalLM", d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    "llama": _decoder("LlamaForCausalLM"),
    "mistral": _decoder("MistralForCausalLM", sliding_window=8),
    "gemma": _decoder("GemmaForCausalLM", head_dim=8),
    "gemma2": _decoder("Gemma2ForCausalLM", head_dim=8, sliding_window=8),
    "gemma3": _decoder("Gemma3ForCausalLM", head_dim=8, sliding_window=8),
    "qwen2": _decoder("Qwen2ForCausalLM"),
    "qwen3": _decoder("Qwen3ForCausalLM", head_dim=8),
    "phi": _decoder("PhiForCausalLM"),
    "phi3": _decoder("Phi3ForCausalLM"),
    "olmo": _decoder("OlmoForCausalLM"),
    "olmo2": _decoder("Olmo2ForCausalLM"),
    "stablelm": _decoder("StableLmForCausalLM"),
    "cohere": _decoder("CohereForCausalLM"),
    "granite": _decoder("GraniteForCausalLM"),
    "starcoder2": _decoder("Starcoder2ForCausalLM"),
    "gpt-bigcode": _decoder(
        "GPTBigCodeForCausalLM", n_embd=32, n_layer=2, n_head=4, n_positions=64
    ),
    "smollm3": _decoder("SmolLM3ForCausalLM"),
    "glm": _decoder("GlmForCausalLM", head_dim=8),
    # mixture of experts
    "mixtral": _decoder("MixtralForCausalLM", **_EXPERTS),
    "qwen2-moe": _decoder(
        "Qwen2MoeForCausalLM",
        **_EXPERTS,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "qwen3-moe": _decoder(
        "Qwen3MoeForCausalLM", **_EXPERTS, moe_intermediate_size=16, head_dim=8
    ),
    "olmoe": _decoder("OlmoeForCausalLM", **_EXPERTS),
    "gpt-oss": _decoder(
        "GptOssForCausalLM",
        **_EXPERTS,
        head_dim=8,
        sliding_window=8,
        rope_parameters=dict(rope_type="default", rope_theta=1e4),
    ),
    "deepseek-v3": _decoder(
        "DeepseekV3ForCausalLM",
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        num_key_value_heads=4,
    ),
    "switch-transformers": _pair(
        "SwitchTransformersForConditionalGeneration",
        "t5",
        num_experts=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
    ),
    # state space
    "mamba": _decoder("MambaForCausalLM", "ids", state_size=4),
    "mamba2": _decoder(
        "Mamba2ForCausalLM",
        "ids",
        state_size=4,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=4,
    ),
    "falcon-mamba": _decoder("FalconMambaForCausalLM", "ids", state_size=4),
    "rwkv": _decoder("RwkvForCausalLM", "ids", attention_hidden_size=32),
    "recurrent-gemma": _decoder(
        "RecurrentGemmaForCausalLM", lru_width=32, num_hidden_layers=3, attention_window_size=8
    ),
    # encoder-decoders
    "t5": _pair("T5ForConditionalGeneration", "t5"),
    "mt5": _pair("MT5ForConditionalGeneration", "t5"),
    "longt5": _pair("LongT5ForConditionalGeneration", "t5", local_radius=4),
    "bart": _pair("BartForConditionalGeneration"),
    "mbart": _pair("MBartForConditionalGeneration"),
    "pegasus": _pair("PegasusForConditionalGeneration"),
    "marian": _pair("MarianMTModel", decoder_vocab_size=VOCABULARY),
    "blenderbot": _pair("BlenderbotForConditionalGeneration"),
    "m2m-100": _pair("M2M100ForConditionalGeneration"),
    # vision
    "vit": _vision("ViTForImageClassification"),
    "deit": _vision("DeiTForImageClassification"),
    "beit": _vision("BeitForImageClassification"),
    "dinov2": _vision("Dinov2ForImageClassification"),
    "data2vec-vision": _vision("Data2VecVisionForImageClassification"),
    "vit-mae": _vision("ViTMAEModel"),
    "yolos": _vision("YolosForObjectDetection", image_size=[32, 32], num_detection_tokens=4),
    "videomae": _vision(
        "VideoMAEForVideoClassification", "video", num_frames=2, tubelet_size=2
    ),
    "swin": _other(
        "SwinForImageClassification",
        "image",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "swinv2": _other(
        "Swinv2ForImageClassification",
        "image",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "convnext": _other(
        "ConvNextForImageClassification",
        "image",
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
    ),
    "resnet": _other(
        "ResNetForImageClassification",
        "image",
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
    ),
    "mobilenet-v2": _other(
        "MobileNetV2ForImageClassification", "image", depth_multiplier=0.25, image_size=32
    ),
    "regnet": _other(
        "RegNetForImageClassification",
        "image",
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        groups_width=8,
    ),
    "poolformer": _other(
        "PoolFormerForImageClassification",
        "image",
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
    ),
    "segformer": _other(
        "SegformerForSemanticSegmentation",
        "large image",
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
    ),
    "detr": _other(
        "DetrForObjectDetection",
        "padded image",
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        num_queries=5,
        backbone_config=_resnet_config,
    ),
    # speech
    "wav2vec2": _speech("Wav2Vec2ForCTC"),
    "hubert": _speech("HubertForCTC"),
    "wavlm": _speech("WavLMForCTC"),
    "data2vec-audio": _speech(
        "Data2VecAudioForCTC", conv_pos_kernel_size=5, num_conv_pos_embeddings=2
    ),
    "unispeech-sat": _speech("UniSpeechSatForCTC"),
    "whisper": _pair(
        "WhisperForConditionalGeneration",
        inputs="spectrum",
        num_mel_bins=16,
        max_source_positions=30,
        max_target_positions=64,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    "speech-to-text": _pair(
        "Speech2TextForConditionalGeneration",
        inputs="spectral frames",
        input_feat_per_channel=16,
        conv_channels=16,
        conv_kernel_sizes=(5,),
        num_conv_layers=1,
        max_source_positions=100,
        max_target_positions=64,
    ),
    "audio-spectrogram": _vision(
        "ASTForAudioClassification", "spectrogram", max_length=32, num_mel_bins=16, patch_size=4
    ),
    # text and images
    "clip": Row("CLIPModel", "two-tower", "text and image"),
    "siglip": Row("SiglipModel", "two-tower", "text and image"),
    "blip": Row("BlipModel", "two-tower", "text and image"),
    "vilt": _encoder(
        "ViltForQuestionAnswering",
        "text and image",
        image_size=32,
        patch_size=8,
        num_labels=5,
        max_image_length=-1,
    ),
}
INPUTS["spectral frames"] = lambda: dict(
    input_features=torch.randn(2, 60, 16), decoder_input_ids=_tokens(7)
)


def _config_class(model_class: Any) -> Any:
    return model_class.config_class


@functools.cache
def _transformers() -> Any:
    import transformers

    return transformers


def build(
    name: str,
    seed: int = 0,
    other: dict[str, Any] | None = None,
) -> tuple[torch.nn.Module, Inputs]:
    """The model of that row, in eval mode, and keyword arguments for its forward.

    other: sizes that replace the row's. Raises AttributeError where this version of `transformers`
    has no such class.
    """
    row = ZOO[name]
    model_class = getattr(_transformers(), row.model)
    sizes = {**FAMILIES[row.family], **row.sizes, **(other or {})}
    sizes = {key: value() if callable(value) else value for key, value in sizes.items()}
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**sizes)).eval()
    return model, INPUTS[row.inputs]()
