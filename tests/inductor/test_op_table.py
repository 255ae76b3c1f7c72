"""The op table: well formed, and every operation known to every printer."""

import torch

from minidynamo.inductor.codegen.cpp_reduce import COMBINE
from minidynamo.inductor.codegen.cpp_vec import CTYPE, SCALAR, VECTOR
from minidynamo.inductor.codegen.triton_ops import POINTER, TABLE, TYPE
from minidynamo.inductor.graph import SUPPORTED_DTYPES
from minidynamo.inductor.ops import OPS, REDUCTIONS

# Printed by the printer itself, not from its tables: they need more than operands' texts.
SPECIAL = {"cast"}


def pointwise_ops():
    return {name for name, op in OPS.items() if op.kind == "pointwise"} - SPECIAL


def test_rows_are_well_formed():
    for op in OPS.values():
        assert op.kind in ("memory", "leaf", "pointwise", "reduction")
        assert op.dtype in ("same", "bool", "explicit")
        assert op.domain in ("any", "float", "int", "number")
        assert op.doc and op.cost >= 0


def test_cpp_prints_every_operation():
    assert set(SCALAR) == pointwise_ops()
    assert set(VECTOR) == pointwise_ops()


def test_cpp_prints_every_reduction():
    assert set(COMBINE) | {"argmax", "argmin"} == set(REDUCTIONS)


def test_cpp_knows_every_dtype():
    assert set(CTYPE) == SUPPORTED_DTYPES
    assert torch.float32 in CTYPE


def test_triton_prints_every_operation():
    assert set(TABLE) == pointwise_ops() - {"bitcast"}  # printed like a cast


def test_triton_knows_every_dtype():
    assert set(TYPE) == set(POINTER) == SUPPORTED_DTYPES
