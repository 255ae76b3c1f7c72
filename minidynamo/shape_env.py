"""torch's ShapeEnv, which takes `trunc(a / b)` for `a // b`, also where a is negative; here not."""

from __future__ import annotations

from typing import Any

from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, ToFloat, TruncToInt

__all__ = ["ExactShapeEnv", "keeping_quotients"]


def keeping_quotients(expr: Any, env: ShapeEnv) -> Any:
    """The expression with quotients that `ShapeEnv.simplify` would round down, not to zero, written
    as those of floats, which it leaves as they are.
    """
    if not expr.has(TruncToInt):
        return expr
    kept = {}
    for rounded in expr.atoms(TruncToInt):
        quotient = rounded.args[0]
        if isinstance(quotient, IntTrueDiv) and not all(
            _is_counted(a, env) for a in quotient.args
        ):
            kept[rounded] = TruncToInt(FloatTrueDiv(*map(ToFloat, quotient.args)))
    return expr.xreplace(kept)


def _is_counted(expr: Any, env: ShapeEnv) -> bool:
    return bool(env.bound_sympy(expr).lower >= 0)


class ExactShapeEnv(ShapeEnv):
    """Simplifies nothing to another value than Python gives."""

    def simplify(self, expr: Any, *args: Any, **kwargs: Any) -> Any:
        return super().simplify(keeping_quotients(expr, self), *args, **kwargs)
