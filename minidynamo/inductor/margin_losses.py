"""The margin losses, taken apart as ATen computes them.

torch's decompositions count a class that is no target once for each target that is not given, keep
a row for an example without a batch, and make NaN of what ATen leaves out. They stand in before
autograd, so these do so too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_NONE, _MEAN = 0, 1


def _kept(z: Tensor, keep: Tensor) -> Tensor:
    """What is lost: never NaN, as comparisons with it are false."""
    return torch.where(keep & (z > 0), z, 0)


def _reduced(rows: Tensor, reduction: int) -> Tensor:
    if reduction == _NONE:
        return rows
    return rows.mean() if reduction == _MEAN else rows.sum()


def multilabel_margin_loss_forward(
    x: Tensor,
    target: Tensor,
    reduction: int,
) -> tuple[Tensor, Tensor]:
    """The sum of max(0, 1 - (x[y] - x[i])) over targets y, up to the first -1, and other classes i,
    by the number of classes.

    Args:
        x: (classes,) or (examples, classes).
        target: int64, of the same shape.
        reduction: 0, 1, 2: none, mean, sum.

    Returns:
        the loss, and 1 where a class is a target, else 0, of x's shape and dtype.
    """
    shape = target.shape
    torch._check(
        x.dim() <= 2 and x.shape[-1:] != (0,),
        lambda: (
            "Expected non-empty vector or matrix with optional 0-dim batch size, "
            f"but got: {list(x.shape)}"
        ),
    )
    torch._check(
        shape == x.shape,
        lambda: f"inconsistent target size: {list(shape)} for input of size: {list(x.shape)}",
    )
    x, target = torch.atleast_2d(x), torch.atleast_2d(target)
    classes = x.shape[1]
    index = torch.arange(classes, device=x.device)
    end = torch.where(target == -1, index, classes).amin(-1, keepdim=True)
    given = index < end
    is_target = (given.unsqueeze(-1) & (target.unsqueeze(-1) == index)).any(1)
    at = x.gather(1, torch.where(given, target, 0))
    z = 1 - at.unsqueeze(-1) + x.unsqueeze(1)
    lost = _kept(z, given.unsqueeze(-1) & ~is_target.unsqueeze(1))
    rows = lost.sum((1, 2)) / classes
    if len(shape) < 2:
        rows = rows.squeeze(0)
    return _reduced(rows, reduction), is_target.to(x.dtype).reshape(shape)


def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """The sum of w[y] * max(0, margin - x[y] + x[i]) ** p over classes i other than the target y,
    by the number of classes.

    Args:
        x: (classes,) or (examples, classes).
        target: int64, () or (examples,).
        p: 1 or 2.
        weight: (classes,).
        reduction: 0, 1, 2: none, mean, sum.
    """
    torch._check(p in (1, 2), lambda: "only p == 1 and p == 2 supported")
    torch._check(
        x.dim() <= 2 and x.shape[-1:] != (0,),
        lambda: (
            "Expected non-empty vector or matrix with optional 0-dim batch size, "
            f"but got: {list(x.shape)}"
        ),
    )
    x = torch.atleast_2d(x)
    examples, classes = x.shape
    torch._check(
        target.dim() <= 1 and target.numel() == examples,
        lambda: f"inconsistent target size, expected {examples} but got {list(target.shape)}",
    )
    torch._check(
        weight is None or (weight.dim() <= 1 and weight.numel() == classes),
        lambda: f"inconsistent weight size, expected {classes} but got {weight.shape}",  # type: ignore[union-attr]
    )
    own = target.reshape(-1, 1)
    z = margin - x.gather(1, own) + x
    lost = _kept(z, torch.arange(classes, device=x.device) != own)
    lost = lost if p == 1 else lost * lost
    if weight is not None:
        lost = lost * weight.reshape(-1)[own]
    rows = lost.sum(1) / classes
    return _reduced(rows if target.dim() else rows.squeeze(0), reduction)


MARGIN_LOSSES: dict[Any, Any] = {
    aten.multi_margin_loss.default: multi_margin_loss,
    aten.multilabel_margin_loss_forward.default: multilabel_margin_loss_forward,
}
