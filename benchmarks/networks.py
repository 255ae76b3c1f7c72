"""Networks of torchvision, timm and transformers at real sizes: time of the GPU, of a call and
memory beside torch.compile's.

    python benchmarks/networks.py [NAME ...] [--images N] [--texts N] [--write]

Every network is measured in evaluation (without gradients) and in one training step (forward and
backward pass under autocast to bfloat16; the loss is the model's own where it has one, else the
mean square of its result). Images are evaluated in float32, texts and sounds in bfloat16. All
networks are compiled at once, each in a process of its own; then they are timed one after the
other. `error` is that of the results, or of all gradients together, beside eager's: norm of the
difference by norm; torch.compile's follows.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import device_name, gpu_seconds, interleaved, table, write_page  # noqa: E402
from training import peak_memory  # noqa: E402

import minidynamo  # noqa: E402

IMAGES = (
    "resnet18",
    "resnet50",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "densenet121",
    "convnext_tiny",
    "regnet_y_800mf",
    "vgg11_bn",
    "swin_t",
    "vit_b_16",
)
TIMM = ("vit_small_patch16_224", "mixer_s16_224", "convnextv2_tiny", "efficientformerv2_s1")
LENGTHS = {  # of transformers: the batch's length
    "gpt2": 512,
    "bert": 256,
    "llama": 512,
    "t5": 256,
    "deberta-v2": 256,
    "modernbert": 512,
    "whisper": 128,
    "qwen3": 512,
}
SMALLER = {  # than what the configuration says by default, which is a model of billions of weights
    "llama": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12},
    "qwen3": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 12},
    "deberta-v2": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
}
HEADS = {
    "llama": {"num_attention_heads": 12, "num_key_value_heads": 4},
    "qwen3": {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64},
    "deberta-v2": {"num_attention_heads": 12},
}
DROPOUTS = (
    "dropout",
    "attention_dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)
DROPOUTS += ("resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate", "activation_dropout")
NETWORKS = (*IMAGES, *TIMM, *LENGTHS)
SUBJECTS = ("eager", "torch.compile", "minidynamo")
HEADER = ["network", "", "eager us", "torch us", "ours us", "/ torch", "calls / torch"]
HEADER += ["MiB / torch", "error", "torch's", "compiled in s", "torch's"]
Step = Callable[[], list[torch.Tensor]]


def language_model(name: str, batch: int, device: str) -> tuple[nn.Module, dict[str, Any]]:
    """A model of transformers for texts, or sounds, with random weights, and a batch for it."""
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(
        name, **SMALLER.get(name, {}), **HEADS.get(name, {})
    )
    for rate in DROPOUTS:
        if hasattr(config, rate):
            setattr(config, rate, 0.0)
    config.use_cache = False
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    encoder = name in ("bert", "deberta-v2", "modernbert")
    kind = "AutoModelForCausalLM"
    if encoder or name in ("t5", "whisper"):
        kind = "AutoModelForMaskedLM" if encoder else "AutoModelForSeq2SeqLM"
    if name == "whisper":
        kind = "AutoModelForSpeechSeq2Seq"
    model = getattr(transformers, kind).from_config(config)
    tokens = torch.randint(5, 1000, (batch, LENGTHS[name]), device=device)
    batch_of = {"input_ids": tokens, "labels": tokens}
    if name == "whisper":
        sound = torch.randn(batch, config.num_mel_bins, 3000, device=device)
        batch_of = {"input_features": sound, "labels": tokens}
    return model, batch_of


def image_network(name: str, batch: int, device: str) -> tuple[nn.Module, dict[str, Any]]:
    """A network for images with random weights, nothing dropped, and a batch of 224 x 224."""
    if name in TIMM:
        model = importlib.import_module("timm").create_model(name)
    else:
        model = getattr(importlib.import_module("torchvision.models"), name)(weights=None)
    for module in model.modules():
        if type(module).__name__ in ("Dropout", "StochasticDepth"):
            module.p = 0.0
        if type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    return model, {"x": torch.randn(batch, 3, 224, 224, device=device)}


def result_of(output: Any) -> torch.Tensor:
    """What a model gives first: logits."""
    if isinstance(output, torch.Tensor):
        return output
    return output["logits"]


def compiled(model: nn.Module, subject: str) -> Callable[..., Any]:
    """The model as the subject runs it."""
    if subject == "eager":
        return model
    return torch.compile(model) if subject == "torch.compile" else minidynamo.compile(model)


def evaluation(model: nn.Module, call: Callable[..., Any], inputs: dict[str, Any]) -> Step:
    """One call without gradients; returns its result."""
    model.eval()
    if "labels" in inputs:
        model.bfloat16()
        inputs = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs.items()}
        if "input_features" not in inputs:
            del inputs["labels"]
            if model.config.is_encoder_decoder:
                inputs["decoder_input_ids"] = inputs["input_ids"]

    def step() -> list[torch.Tensor]:
        with torch.no_grad():
            return [result_of(call(**inputs))]

    return step


def training(model: nn.Module, call: Callable[..., Any], inputs: dict[str, Any]) -> Step:
    """Forward and backward pass; returns the gradients."""

    def step() -> list[torch.Tensor]:
        with torch.autocast(next(iter(inputs.values())).device.type, torch.bfloat16):
            output = call(**inputs)
            loss = output["loss"] if "labels" in inputs else output.float().square().mean()
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        for p in model.parameters():
            p.grad = None
        return gradients

    model.train()
    return step


def error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Norm of all differences together by the norm of what is expected."""
    difference = sum(
        float((a - b).double().square().sum()) for a, b in zip(found, expected, strict=True)
    )
    square = sum(float(b.double().square().sum()) for b in expected)
    return (difference / square) ** 0.5 if square else difference**0.5


def measure(name: str, device: str, options: argparse.Namespace) -> list[list[str]]:
    """Rows of the table; waits for a line of input between compiling and timing."""
    torch.manual_seed(0)
    if name in LENGTHS:
        original, inputs = language_model(name, options.texts, device)
    else:
        original, inputs = image_network(name, options.images, device)
    ready = []
    for what in (evaluation, training):
        steps, seconds, results = {}, {}, {}
        for subject in SUBJECTS:
            model = copy.deepcopy(original).to(device)
            steps[subject] = what(model, compiled(model, subject), dict(inputs))
            start = time.perf_counter()
            results[subject] = [t.detach().clone() for t in steps[subject]()]
            seconds[subject] = time.perf_counter() - start
        errors = [error(results[s], results["eager"]) for s in reversed(SUBJECTS[1:])]
        ready.append((what.__name__, steps, seconds, errors))
    print("ready", flush=True)
    sys.stdin.readline()
    rows = []
    for kind, steps, seconds, errors in ready:
        for step in steps.values():
            step(), step()
        memory = {subject: peak_memory(step, device) for subject, step in steps.items()}
        calls = {s: t.median for s, t in interleaved(steps, rounds=5).items()}
        gpu = calls
        if device != "cpu":
            gpu = {s: gpu_seconds(step, calls=3, rounds=5) for s, step in steps.items()}
        ours, theirs = "minidynamo", "torch.compile"
        row = [name, kind, *(f"{gpu[s] * 1e6:.0f}" for s in SUBJECTS)]
        row += [f"{gpu[ours] / gpu[theirs]:.2f}", f"{calls[ours] / calls[theirs]:.2f}"]
        row += [f"{memory[ours] / max(memory[theirs], 1):.2f}", *(f"{e:.1e}" for e in errors)]
        rows.append([*row, f"{seconds[ours]:.1f}", f"{seconds[theirs]:.1f}"])
    return rows


def start(name: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    """A process that compiles a network and waits."""
    arguments = ["--one", "--images", str(options.images), "--texts", str(options.texts)]
    return subprocess.Popen(
        [sys.executable, __file__, name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    """Compile all in parallel, time them in turn and print, or write, the table."""
    parser = argparse.ArgumentParser(description="networks beside torch.compile")
    parser.add_argument(
        "names", nargs="*", default=NETWORKS, help="networks of the three libraries"
    )
    parser.add_argument("--images", type=int, default=32, help="in a batch")
    parser.add_argument("--texts", type=int, default=8, help="in a batch")
    parser.add_argument("--write", action="store_true", help="write the page of results")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.one:
        for row in measure(options.names[0], device, options):
            print("row", *row, sep="\t", flush=True)
        return
    processes = {name: start(name, options) for name in options.names}
    for process in processes.values():
        assert process.stdout is not None
        process.stdout.readline()
    rows, failed = [], []
    for name, process in processes.items():
        output, _ = process.communicate("go\n")
        found = [line.split("\t")[1:] for line in output.splitlines() if line[:4] == "row\t"]
        rows += found
        failed += [name] * (len(found) != 2 or process.returncode != 0)
        for row in found:
            print("  ".join(row), flush=True)
    text = table(HEADER, rows)
    about = (
        f"{device_name(device)}; torch {torch.__version__}, Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}; batches of "
        f"{options.images} images or {options.texts} texts"
    )
    print(about, text, sep="\n\n")
    if options.write:
        page = f"# Networks\n\n`benchmarks/networks.py` on {about}\n\n"
        write_page("networks", f"{page}```\n{text}\n```\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
