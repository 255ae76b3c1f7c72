"""Arithmetic over mixed dtypes, at their edges (see scripts.py).

Everything here is exact or rounds once, so eager's bits are the only right ones.
Of zeros of both signs either may be the largest: none is negative there. Half floats are computed
in float32 until they are stored: they hold few and small numbers, and are not compared, floored or
cast once they were computed with.
"""

SETUP = """
import torch, minidynamo

INF, NAN = float("inf"), float("nan")

def edges(dtype, *shape):
    if dtype.is_floating_point:
        most = [] if dtype.itemsize == 2 else [1e30, 3.7, 2.0**31, -2.0**63, 256.5]
        numbers = [0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, 2.5, -2.5, 0.5, 3.0, -7.0, *most]
    elif dtype is torch.bool:
        numbers = [True, False, True]
    elif dtype.is_complex:
        numbers = [0, 1 + 2j, -1.5j, -2 + 0.5j, 3, 1j]
    else:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        numbers = [0, 1, 2, high, low, 3, 7, high - 1, low + 1, 100, high // 2, 5]
        numbers += [-1, -7, -2] if low else [8]
    count = torch.Size(shape).numel()
    start = count * 3 + len(shape) * 5
    return torch.tensor([numbers[(start + i * 7) % len(numbers)] for i in range(count)],
                        dtype=dtype).reshape(shape)

def small(dtype, *shape):
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 5 % 7 + (0 if dtype is torch.uint8 else -3)).reshape(
        shape).to(dtype)

"""
SIGNATURE = {
    "i": "INT",
    "j": "INT",
    "f": "FLOAT",
    "g": "FLOAT",
    "h": "HALF",
    "b": "BOOL",
    "c": "COMPLEX",
    "n": "NUMBER",
}
RESULTS = ("INT", "FLOAT", "BOOL", "COMPLEX", "HALF")
CALLS = 2


def rounding(text: str) -> float:
    return 0.0


_INTS = ("int64", "int32", "uint8", "int16", "int8", "bool")


def _made(dtypes: tuple[str, ...], *more: str) -> list[str]:
    rows = [f"edges(torch.{dtype}, *s)" for dtype in dtypes]
    rows += [f"edges(torch.{dtype}, s[-1] if s else 1)" for dtype in dtypes]
    return [*rows, *(f"edges(torch.{dtype})" for dtype in dtypes), *more]


ARGUMENTS = {
    "s": ["(5,)", "(3, 5)", "(19,)", "()", "(1,)", "(2, 33)", "(0,)", "(40,)"],
    "i": _made(_INTS, "small(torch.int32, *s)", "edges(torch.int64, 3, *s)[1]"),
    "j": _made(_INTS, "small(torch.uint8, *s)", "i", "i.flip(0) if s else i"),
    "f": _made(("float32", "float64"), "edges(torch.float32, *s, 2)[..., 0]"),
    "g": _made(("float64", "float32"), "small(torch.float32, *s)", "f"),
    "h": _made(("bfloat16", "float16"), "small(torch.bfloat16, *s)"),
    "b": ["edges(torch.bool, *s)", "f > 0", "i != 1", "torch.tensor(True)"],
    "c": ["edges(torch.complex64, *s)", "edges(torch.complex128, *s)", "torch.tensor(2 - 1j)"],
    "n": ["2", "0.5", "-1", "3", "-2.5", "True", "0", "2**40", "NAN", "INF", "-0.0", "255"],
}
LEAVES = {
    "INT": ["i", "j"],
    "FLOAT": ["f", "g"],
    "HALF": ["h"],
    "BOOL": ["b", "f < g", "i <= j"],
    "COMPLEX": ["c"],
    "NUMBER": ["n", "2", "-1", "0.5"],
    "WHOLE": ["2", "3", "-1", "7"],
    "BITS": ["0", "1", "5", "7"],
    "MODE": ["'floor'", "'trunc'"],
    "ANY": ["i", "f", "b"],
    "REAL": ["i", "f", "b"],
    "INT_TYPE": ["torch.int32", "torch.int64"],
    "FLOAT_TYPE": ["torch.float32", "torch.float64"],
    "COMPARE": ["<", "==", ">="],
}
EXPRESSIONS = {
    "NUMBER": ["n", "2", "-1", "0.5", "0", "3", "True", "1e20", "INF", "NAN", "-0.0", "2**33"],
    "WHOLE": ["2", "3", "-1", "7", "-7", "0", "255", "2**31 - 1", "-(2**31)", "1"],
    "BITS": ["0", "1", "5", "7", "31", "63", "8", "16", "<INT> % 8"],
    "MODE": ["'floor'", "'trunc'"],
    "COMPARE": ["<", "==", ">=", "!=", ">", "<="],
    "INT_TYPE": [
        *(f"torch.{dtype}" for dtype in _INTS),
        "torch.uint16",
        "torch.uint32",
        "torch.uint64",
    ],
    "FLOAT_TYPE": ["torch.float32", "torch.float64"],
    "ANY": ["<INT>", "<FLOAT>", "<BOOL>", "<COMPLEX>", "<HALF?>"],
    "REAL": ["<INT>", "<FLOAT>", "<BOOL>", "<HALF?>"],
    "BOOL": [
        "<REAL> <COMPARE> <REAL>",
        "(<REAL> <COMPARE> <NUMBER>)",
        "torch.isnan(<FLOAT>)",
        "torch.isinf(<FLOAT>)",
        "torch.isfinite(<ANY>)",
        "torch.signbit(<FLOAT>.nan_to_num())",
        "(<BOOL> & <BOOL>)",
        "(<BOOL> ^ <BOOL>)",
        "~<BOOL>",
        "torch.logical_not(<ANY>)",
        "torch.logical_xor(<ANY>, <ANY>)",
        "<ANY>.bool()",
        "<COMPLEX> == <ANY>",
        "torch.isclose(<FLOAT>, <FLOAT>, equal_nan=True)",
        "torch.where(<BOOL>, <BOOL>, <BOOL>)",
        "<REAL>.any()",
        "<REAL>.all()",
        "torch.isin(<INT>, <INT>)",
        "torch.isposinf(<FLOAT>)",
        "torch.bucketize(<FLOAT>, torch.tensor([0.0, 1.0, 2.5])) > 1",
    ],
    "INT": [
        "<INT> + <INT>",
        "(<INT> - <WHOLE>)",
        "(<INT> * <INT>)",
        "<INT> // <WHOLE>",
        "(<WHOLE> // <INT>)",
        "<INT> // <INT>",
        "<INT> % <WHOLE>",
        "(<INT> % <INT>)",
        "torch.fmod(<INT>, <INT>)",
        "torch.div(<INT>, <INT>, rounding_mode=<MODE>)",
        "torch.div(<INT>, <WHOLE>, rounding_mode=<MODE>)",
        "(<INT> << <BITS>)",
        "(<INT> >> <BITS>)",
        "(<INT> & <INT>)",
        "(<INT> | <WHOLE>)",
        "(<INT> ^ <INT>)",
        "~<INT>",
        "-<INT>",
        "<INT>.abs()",
        "<INT>.sign()",
        "<INT> ** 2",
        "<INT>.pow(3)",
        "torch.maximum(<INT>, <INT>)",
        "<INT>.clamp(<WHOLE>, <WHOLE>)",
        "<INT>.clamp(min=<INT>)",
        "torch.where(<BOOL>, <INT>, <INT>)",
        "torch.where(<BOOL>, <INT>, <WHOLE>)",
        "<INT>.to(<INT_TYPE>)",
        "<BOOL>.to(<INT_TYPE>)",
        "<FLOAT>.clamp(-100, 100).nan_to_num().to(<INT_TYPE>)",
        "<BOOL> + <BOOL>",
        "<BOOL> * <INT>",
        "<INT>.masked_fill(<BOOL>, <WHOLE>)",
        "torch.gcd(<INT>, <INT>)",
        "<INT>.sum()",
        "<INT>.amax()",
        "<REAL>.argmax()",
        "<INT>.prod()",
        "<INT>.sum(0, dtype=torch.int32)",
        "<INT>.cumsum(0)",
        "torch.full_like(<INT>, <WHOLE>)",
        "torch.add(<INT>, <INT>, alpha=<WHOLE>)",
        "torch.rsub(<INT>, <WHOLE>)",
        "torch.square(<INT>)",
        "<INT>.view(torch.uint8)",
        "<FLOAT>.nan_to_num().view(torch.int32)",
        "<INT>.sort().values",
        "torch.stack([<INT>, <INT>]).sum(0)",
        "torch.cat([<INT>.view(-1), <INT>.view(-1)])",
        "torch.heaviside(<INT>, <INT>)",
        "torch.eq(<REAL>, <REAL>).int()",
        "torch.bitwise_left_shift(<INT>, <INT> & 7)",
        "torch.floor_divide(<INT>, <NUMBER>).nan_to_num(1, 2, 3).clamp(-9, 9).int()",
    ],
    "FLOAT": [
        "<FLOAT> + <FLOAT>",
        "(<FLOAT> * <NUMBER>)",
        "(<FLOAT> - <INT>)",
        "<FLOAT> / <REAL>",
        "(<INT> / <INT>)",
        "(<INT> / <NUMBER>)",
        "(<NUMBER> / <FLOAT>)",
        "<FLOAT> // <FLOAT>",
        "(<FLOAT> // <NUMBER>)",
        "<FLOAT> % <FLOAT>",
        "(<FLOAT> % <NUMBER>)",
        "torch.fmod(<FLOAT>, <FLOAT>)",
        "torch.remainder(<NUMBER>, <FLOAT>)",
        "torch.div(<FLOAT>, <FLOAT>, rounding_mode=<MODE>)",
        "-<FLOAT>",
        "<FLOAT>.abs()",
        "<FLOAT>.floor()",
        "<FLOAT>.ceil()",
        "<FLOAT>.round()",
        "<FLOAT>.trunc()",
        "<FLOAT>.frac()",
        "<FLOAT>.sign()",
        "<FLOAT>.sgn()",
        "torch.copysign(<FLOAT>, <FLOAT>.nan_to_num())",
        "torch.copysign(<FLOAT>, <WHOLE>)",
        "torch.maximum(<FLOAT>, <FLOAT>)",
        "torch.fmax(<FLOAT>, <FLOAT>)",
        "torch.fmin(<FLOAT>, <FLOAT>)",
        "torch.minimum(<FLOAT>, <REAL>)",
        "<FLOAT>.clamp(<NUMBER>, <NUMBER>)",
        "<FLOAT>.clamp(<FLOAT>, <FLOAT>)",
        "<FLOAT>.clamp(max=<NUMBER>)",
        "torch.where(<BOOL>, <FLOAT>, <FLOAT>)",
        "torch.where(<BOOL>, <FLOAT>, <NUMBER>)",
        "torch.where(<BOOL>, <INT>, <FLOAT>)",
        "torch.where(<BOOL>, <INT>, 0.5)",
        "<FLOAT>.to(<FLOAT_TYPE>)",
        "<INT>.to(<FLOAT_TYPE>)",
        "<BOOL>.float()",
        "<FLOAT>.nan_to_num(1.0)",
        "<FLOAT>.nan_to_num(nan=<NUMBER>, posinf=7)",
        "torch.nextafter(<FLOAT>, <FLOAT>)",
        "<FLOAT>.sqrt()",
        "<FLOAT>.reciprocal()",
        "<FLOAT> ** 2",
        "<FLOAT>.square()",
        "<FLOAT>.relu()",
        "torch.nn.functional.hardtanh(<FLOAT>, -1.5, 2.5)",
        "torch.nn.functional.relu6(<FLOAT>)",
        "torch.nn.functional.leaky_relu(<FLOAT>, 0.5)",
        "torch.nn.functional.threshold(<FLOAT>, 1, <WHOLE>)",
        "torch.heaviside(<FLOAT>, <FLOAT>)",
        "<FLOAT>.masked_fill(<BOOL>, <NUMBER>)",
        "(<FLOAT> + 0.0).amax()",
        "(<FLOAT> + 0.0).amin(0)",
        "(<FLOAT> + 0.0).max(0).values",
        "(<FLOAT> + 0.0).cummax(0).values",
        "<FLOAT>.ldexp(torch.tensor(2))",
        "torch.frexp(<FLOAT>).mantissa",
        "(<FLOAT> + 0.0).sort().values",
        "<FLOAT>.logical_not().float()",
        "torch.add(<FLOAT>, <FLOAT>, alpha=<WHOLE>)",
        "torch.rsub(<FLOAT>, <INT>)",
        "torch.lerp(<FLOAT>, <FLOAT>, 1.0)",
        "torch.full_like(<INT>, <NUMBER>, dtype=torch.float32)",
        "<COMPLEX>.real",
        "torch.float_power(<INT> % 5, 2)",
        "torch.xlogy(<FLOAT>, torch.ones_like(<FLOAT>))",
        "torch.deg2rad(torch.zeros_like(<FLOAT>))",
        "torch.addcmul(<FLOAT>, <FLOAT>, <FLOAT>)",
        "torch.sub(<REAL>, <FLOAT>, alpha=2)",
        "torch.as_tensor(<NUMBER>) + <FLOAT>",
        "<FLOAT> + torch.tensor(<NUMBER>, dtype=torch.float64)",
    ],
    "HALF": [
        "-<HALF>",
        "<HALF>.abs()",
        "torch.where(<BOOL>, <HALF>, <HALF>)",
        "torch.maximum(<HALF>, <HALF>)",
        "<HALF>.relu()",
        "torch.where(<BOOL>, <HALF>, <NUMBER>)",
        "<HALF>.to(torch.float32).to(torch.bfloat16)",
        "<FLOAT>.to(torch.bfloat16)",
        "<FLOAT>.to(torch.float16)",
        "<INT>.to(torch.bfloat16)",
        "<HALF>.clamp(-2, 2)",
        "<HALF>.sign()",
        "<HALF>.round()",
        "h + h",
        "h * 2",
        "h - <BOOL>",
        "<HALF>.masked_fill(<BOOL>, 2)",
        "<HALF>.amax()",
        "h.half() + 1",
        "h % 2",
        "h // 2",
        "h / 2",
        "<INT>.to(torch.float16)",
    ],
    "COMPLEX": [
        "(<COMPLEX> + <ANY>)",
        "-<COMPLEX>",
        "<COMPLEX>.conj()",
        "(<COMPLEX> - <NUMBER>)",
        "torch.complex(<FLOAT>.float(), <FLOAT>.float())",
        "torch.where(<BOOL>, <COMPLEX>, <REAL>)",
        "<REAL>.to(torch.complex64)",
        "<COMPLEX>.to(torch.complex128)",
        "torch.view_as_complex(torch.view_as_real(<COMPLEX>.resolve_conj()))",
        "(<COMPLEX>.imag + 1j)",
        "<COMPLEX>.masked_fill(<BOOL>, <NUMBER>)",
        "(<COMPLEX> * 2)",
    ],
}
STATEMENTS = [
    "<+INT> = <INT>",
    "<+FLOAT> = <FLOAT>",
    "<+BOOL> = <BOOL>",
    "<+INT> = <INT>",
    "<+FLOAT> = <FLOAT>",
    "<+HALF> = <HALF>",
    "<+COMPLEX> = <COMPLEX>",
    "<+INT> = <INT>.clone()\n<INT?>.add_(<WHOLE>)",
    "<+INT> = <INT>.clone()\n<INT?>.mul_(<INT>)",
    "<+FLOAT> = <FLOAT>.clone()\n<FLOAT?>.copy_(<ANY>)",
    "<+FLOAT> = <FLOAT>.clone()\n<FLOAT?>.div_(<REAL>)",
    "<INT?>.copy_(<FLOAT>.clamp(-100, 100).nan_to_num())",
    "<INT?>.fill_(<WHOLE>)",
    "<INT?>.floor_divide_(<WHOLE>)",
    "<BOOL?>.logical_xor_(<ANY>)",
    "<INT?>[...] = <INT>",
    "<FLOAT?>[..., ::2] = <NUMBER>",
    "<INT!> += <INT>",
    "<FLOAT!> *= <REAL>",
    "<INT!> <<= <BITS>",
    "<FLOAT?>.masked_fill_(<BOOL>, <NUMBER>)",
    "torch.add(<INT>, <INT>, out=<INT?>)",
    "torch.mul(<REAL>, <FLOAT>, out=<FLOAT?>)",
    "minidynamo.graph_break()",
]
