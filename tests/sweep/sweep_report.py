"""The sweep's results as a page (docs/operators.md)."""

from collections import defaultdict

HEAD = """# Operators

Written by `make sweep` (tests/sweep/op_sweep.py): every operator of torch's table
(`torch.testing._internal.common_methods_invocations.op_db`) against eager, on CPU. Compared are
values, dtypes, shapes, strides (where eager's are dense), which results share memory with which
arguments, what happened to the arguments, gradients, and exceptions. `fullgraph=True` first; a case
whose only failure is a graph break is listed as `break` (but for `out_resized`, where the graph has
to break).

function, grad, inplace, out: as the names say. error: the table's wrong calls, which must raise
what eager raises; error_dynamic: the same with `dynamic=True`. dynamic: with `dynamic=True`,
gradients included. strided: tensors with holes. channels_last: tensors of four dimensions laid out
so. mixed: every second tensor requires no gradient. out_dtype, out_resized: `out=` of another
dtype; of no elements. out_strided, out_alias, out_grad: with holes; an argument itself; one that
requires gradients. reference: the table's larger set of samples. special: NaN, infinities and
zeros of both signs among the elements. grad_strided: gradients of the results have holes.
"""

WHY = """Differences that stay: results of 16-bit floats are rounded once, where eager rounds each
step (`cross`, `addr`) and overflows in between (gradients of `pow`, `masked.normalize`); bicubic
interpolation of uint8 to symbolic sizes rounds in float32, eager in fixed point; `normal_` of a
tensor with holes draws as for one without. With infinities, NaN and numbers next to overflow
among the arguments: eager's vectorized `fmod` and `remainder` give NaN where the quotient
overflows, its `gelu` of infinity is NaN, its mean in `var_mean` (and of `native_group_norm`,
`native_layer_norm`) is NaN where an infinity is not the row's last element; `cross`,
`avg_pool2d`, `instance_norm` with running statistics and linear interpolation may be NaN on one
side alone. The mean of `multi_margin_loss` and `multilabel_margin_loss` over no examples is NaN,
eager's is memory as it was. Run operator by operator: gradients of the value in `index_fill`,
`fractional_max_pool3d` with symbolic sizes and gradients, `tensor_split` and `narrow` by tensors.
Breaks stay where the result or its size depends on data, where a generator is an argument, on
sparse tensors, and where `out=` is resized or of another dtype.
"""

NEWER = """\
Of the newer variants and dtypes so many operators were run (in brackets, how many passed in one
graph): function complex128 157 (156); function int16 15 (15); function int8 161 (161); grad
complex128 50 (50); grad_strided float32 167 (167); grad_strided float64 18 (17); reference float32
266 (263); reference int64 22 (22); special bfloat16 10 (8); special float32 214 (202); special
float64 9 (8). The others break the graph as in the table below, or are what stays different with
infinities and NaN.

Of torch's 114 entries of modules (`module_db`), 54 were run in training and in evaluation with
gradients, 80 with `dynamic=True` (some modules only so): values, gradients and buffers are
eager's; batch norm that averages over all steps, losses and encoders that look at data break the
graph. Of `optim_db` 114 configurations were compared over four steps, a parameter without gradient
and another rate among them, on graphs that run as captured (`differentiable=True` was not):
parameters and state are eager's; steps of LBFGS and SparseAdam are left to eager.
"""


def _passes(row):
    breaks_rightly = row["variant"] == "out_resized" and row["kind"] == "break"
    return breaks_rightly or row["kind"] in ("ok", "skip")


def _failures(mine, theirs):
    """Rows of the table of failures: cases of one operator with one reason together."""
    groups = defaultdict(list)
    for row in mine:
        if not _passes(row):
            reason = row["reason"].replace("|", "\\|").replace("\n", " ")
            reason = reason.partition(" Hint:")[0].removeprefix("Unsupported: ")[:160]
            groups[row["kind"], row["op"], reason if row["kind"] != "break" else ""].append(
                (row, reason)
            )
    for (kind, op, _), found in sorted(groups.items()):
        where = ", ".join(sorted({f"{row['variant']} {row['dtype']}" for row, _ in found}))
        verdicts = {theirs[_key(row)]["kind"] for row, _ in found if _key(row) in theirs}
        yield op, where, kind, ", ".join(sorted(verdicts)), found[0][1]


def _table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _shares(mine, theirs):
    groups = defaultdict(list)
    theirs = dict(theirs)
    for row in mine:
        groups[row["variant"], row["dtype"]].append(row)
        plain = theirs.get((row["op"], "float32", "function"))
        if _key(row) not in theirs and plain is not None and plain["kind"] == "break":
            theirs[_key(row)] = plain
    for (variant, dtype), found in sorted(groups.items()):
        run = [row for row in found if row["kind"] != "skip"]
        good = sum(_passes(row) for row in run)
        known = [theirs[key] for row in run if (key := _key(row)) in theirs]
        lost = [
            row
            for row in run
            if not _passes(row) and _key(row) in theirs and _passes(theirs[_key(row)])
        ]
        unknown = sum(not _passes(row) and _key(row) not in theirs for row in run)
        base = len(run) - sum(not _passes(row) for row in known)
        share = f"{100 * (1 - (len(lost) + unknown) / base):.1f}%" if base and theirs else ""
        yield variant, dtype, len(run), good, len(lost) + unknown if theirs else "", share


def _key(row):
    return row["op"], row["dtype"], row["variant"]


def _made_of_loops():
    import minidynamo.inductor.compile_fx  # noqa: F401 (fills the tables)
    from minidynamo.inductor.decompositions import decomposition_table
    from minidynamo.inductor.lowering.registry import LOWERINGS

    def names(ops):
        return ", ".join(
            sorted({str(op).rpartition(".")[0].removeprefix("aten.") for op in ops})
        )

    return [
        "## Lowered to loops\n",
        "With sparse, complex and other unusual arguments they are called all the same:"
        f" {names(LOWERINGS)}.\n",
        "## Taken apart\n",
        f"By torch's decompositions: {names(decomposition_table())}.\n",
    ]


def write_report(path, rows):
    """Write the page; rows: (compiler, op, dtype, variant) -> result."""
    mine = [row for key, row in rows.items() if key[0] == "minidynamo"]
    theirs = {key[1:]: row for key, row in rows.items() if key[0] == "torch"}
    head = [
        "variant",
        "dtype",
        "cases",
        "pass",
        "torch.compile passes, we do not",
        "share of its",
    ]
    parts = [HEAD, _table(head, _shares(mine, theirs))]
    if theirs:
        parts.append(
            "torch.compile was run on cases that fail here, and is taken to pass the others; a\n"
            "graph break of an operator in float32 is taken to be one in all its cases. The\n"
            "share is a lower bound: a failure on which it was not run counts against us. Where a\n"
            "row has fewer cases than the operators support, the sweep stopped before them; cases\n"
            "that passed were not run again with every later change, those that failed were.\n"
        )
    parts += [
        NEWER,
        "## Failures\n",
        "torch.compile: what became there of those of the cases that it was run on.\n",
        WHY,
        _table(
            ["operator", "cases", "kind", "torch.compile", "reason"], _failures(mine, theirs)
        ),
    ]
    called = defaultdict(set)
    for row in mine:
        for name in row.get("externs", ()):
            called[name].add(row["op"])
    parts += [
        "## Called through the dispatcher\n",
        "Operators that some case calls whole (`extern`), and for how many operators of the table;"
        " all others are loops, or made of such.\n",
        _table(
            ["operator", "cases' operators"], [(n, len(v)) for n, v in sorted(called.items())]
        ),
    ]
    parts += _made_of_loops()
    path.write_text("\n".join(parts))
