#!/bin/sh
# Everything for a GPU, in at most 25 minutes: programs beside eager, then times beside torch.compile.
#   benchmarks/gpu.sh [PYTHON]
cd "$(dirname "$0")/.." || exit 1
python=${1:-python3}
log=benchmarks/results/gpu.txt
failed=0

step() {
    seconds=$1
    shift
    echo "== $*"
    timeout "$seconds" "$python" "$@" 2>&1 || { failed=1; echo "== failed or cut off: $*"; }
}

[ -n "$(ls minidynamo/_C.*.so 2>/dev/null)" ] || "$python" setup.py -q build_ext --inplace || exit 1
export PYTHONPATH="$PWD:$PYTHONPATH"
{
    step 240 tests/gpu/gpu_programs.py
    step 90 benchmarks/overhead.py --device cuda
    step 270 benchmarks/training.py --device cuda --rounds 5 --write
    step 900 benchmarks/kernels.py --device cuda --rounds 7 --budget 840 --write
    [ "$failed" = 0 ] || echo "== SOMETHING FAILED"
} >"$log"
cat "$log"
! grep -q "SOMETHING FAILED" "$log"
