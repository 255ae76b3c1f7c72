"""A spread of model_zoo.py at sizes where computing matters: a width of 256 or more, few layers.

model, inputs = build_wide("llama")     # in eval mode; inputs are keyword arguments of forward

And a U-Net of the kind that diffusion models have, which `transformers` lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from model_zoo import Inputs, build
from torch import nn

__all__ = ["TRAINED", "WIDE", "build_wide"]

VOCABULARY = 1000


def _tokens(length: int = 64) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length))


def _text(length: int = 64) -> Inputs:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, -5:] = 0
    return dict(input_ids=_tokens(length), attention_mask=mask)


def _image(size: int = 64) -> Inputs:
    return dict(pixel_values=torch.randn(2, 3, size, size))


def _pair() -> Inputs:
    return dict(**_text(), decoder_input_ids=_tokens(32))


_STACK = dict(
    vocab_size=VOCABULARY,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=8,
    intermediate_size=1024,
    max_position_embeddings=128,
)
_GROUPED = dict(_STACK, num_key_value_heads=4)
_TOWERS = dict(
    vocab_size=VOCABULARY,
    d_model=256,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=1024,
    decoder_ffn_dim=1024,
    max_position_embeddings=128,
)
_VISION = dict(
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=8,
    intermediate_size=1024,
    image_size=64,
)
_STAGES = dict(hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2])

# What differs from the zoo's row, and the inputs.
WIDE: dict[str, tuple[dict[str, Any], Callable[[], Inputs]]] = {
    "bert": (_STACK, _text),
    "deberta-v2": (_STACK, _text),
    "modernbert": (_STACK, _text),
    "gpt2": (dict(_STACK, n_embd=256, n_layer=4, n_head=8, n_positions=128), _text),
    "llama": (_GROUPED, _text),
    "gemma2": (dict(_GROUPED, head_dim=32), _text),
    "bloom": (dict(_STACK, n_layer=4, n_head=8), _text),
    "mixtral": (dict(_GROUPED, intermediate_size=512), _text),
    "deepseek-v3": (
        dict(
            _GROUPED,
            num_key_value_heads=8,
            moe_intermediate_size=256,
            kv_lora_rank=64,
            q_lora_rank=64,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=32,
        ),
        _text,
    ),
    "mamba": (
        dict(_STACK, num_hidden_layers=2, state_size=16),
        lambda: dict(input_ids=_tokens()),
    ),
    "mamba2": (
        dict(
            _STACK, num_hidden_layers=2, state_size=16, num_heads=8, head_dim=64, chunk_size=16
        ),
        lambda: dict(input_ids=_tokens()),
    ),
    "t5": (
        dict(vocab_size=VOCABULARY, d_model=256, d_kv=32, d_ff=1024, num_layers=2, num_heads=8),
        _pair,
    ),
    "bart": (_TOWERS, _pair),
    "vit": (dict(_VISION, patch_size=8), _image),
    "swin": (dict(image_size=64, patch_size=2, embed_dim=48, depths=[2, 2]), _image),
    "convnext": (_STAGES, _image),
    "resnet": (dict(_STAGES, embedding_size=32, layer_type="basic"), _image),
    "mobilenet-v2": (dict(depth_multiplier=0.5, image_size=64), _image),
    "segformer": (
        dict(hidden_sizes=[32, 64, 128, 256], decoder_hidden_size=128),
        lambda: _image(128),
    ),
    "wav2vec2": (
        dict(
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=8,
            intermediate_size=1024,
            conv_dim=(128, 128, 128),
        ),
        lambda: dict(input_values=torch.randn(2, 4000)),
    ),
    "whisper": (
        dict(_TOWERS, num_mel_bins=80, max_source_positions=64, max_target_positions=128),
        lambda: dict(input_features=torch.randn(2, 80, 128), decoder_input_ids=_tokens(32)),
    ),
    "clip": (
        dict(
            text_config=dict(_STACK, projection_dim=128, eos_token_id=2),
            vision_config=dict(_VISION, patch_size=8, projection_dim=128),
            projection_dim=128,
        ),
        lambda: dict(**_text(), **_image()),
    ),
    "unet": ({}, lambda: dict(x=torch.randn(2, 4, 32, 32), time=torch.tensor([3.0, 40.0]))),
}
# Those of which a training step is measured as well.
TRAINED = ("bert", "llama", "mixtral", "mamba", "t5", "vit", "convnext", "resnet", "unet")


class Mixed(nn.Module):
    """A residual block that is told the time, with attention behind it where asked for."""

    def __init__(self, given: int, width: int, attends: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, given), nn.GroupNorm(8, width)
        self.conv1 = nn.Conv2d(given, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(128, width)
        self.shortcut = nn.Conv2d(given, width, 1) if given != width else nn.Identity()
        self.norm3 = nn.GroupNorm(8, width) if attends else None
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """x: (batch, given, height, width); time: (batch, 128)."""
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        x = self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))
        if self.norm3 is None:
            return x
        batch, width, rows, columns = x.shape
        parts = self.qkv(self.norm3(x)).view(batch, 3, 4, width // 4, rows * columns)
        q, k, v = parts.transpose(-1, -2).unbind(1)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return x + self.out(seen.reshape(batch, width, rows, columns))


class UNet(nn.Module):
    """Two levels down, two up, of 64 and 128 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.first = nn.Conv2d(4, 64, 3, padding=1)
        self.down = nn.ModuleList([Mixed(64, 64, False), Mixed(64, 128, True)])
        self.halves = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in (64, 128))
        self.middle = Mixed(128, 128, True)
        self.up = nn.ModuleList([Mixed(256, 64, True), Mixed(128, 64, False)])
        self.last = nn.Sequential(
            nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 4, 3, padding=1)
        )

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """x: (batch, 4, height, width); time: (batch,)."""
        rates = torch.exp(torch.arange(32, device=x.device) * -0.3)
        angles = time[:, None] * rates
        told = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.first(x)
        kept = []
        for block, half in zip(self.down, self.halves, strict=True):
            x = block(x, told)
            kept.append(x)
            x = half(x)
        x = self.middle(x, told)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), told)
        return self.last(x)


def build_wide(name: str, seed: int = 0) -> tuple[nn.Module, Inputs]:
    """The model of that row, in eval mode, and keyword arguments for its forward."""
    sizes, inputs = WIDE[name]
    if name == "unet":
        torch.manual_seed(seed)
        return UNet().eval(), inputs()
    return build(name, seed, sizes)[0], inputs()
