#!/bin/sh
# Everything for a GPU: programs beside eager, then rates and times beside torch.compile. What finds most comes
# first; each part takes at most ten minutes, prints as it goes, and is added to benchmarks/results/gpu.txt.
#   benchmarks/gpu.sh [PYTHON [check|programs|rates|calls|training|kernels ...]]
cd "$(dirname "$0")/.." || exit 1
python=${1:-python3}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- check programs rates calls training kernels
log=benchmarks/results/gpu.txt
failures=$(mktemp)
trap 'rm -f "$failures"' EXIT
export PYTHONPATH="$PWD:$PYTHONPATH" PYTHONUNBUFFERED=1

step() {
    seconds=$1
    shift
    echo "== $*"
    timeout "$seconds" "$python" "$@" 2>&1 || { echo "== FAILED OR CUT OFF: $*"; echo "$*" >>"$failures"; }
}

part() {
    case $1 in
    check) step 120 benchmarks/gpu_check.py ;;
    programs) step 420 tests/gpu/gpu_programs.py ;;
    rates) step 420 benchmarks/rates.py --ahead 8 ;;
    calls) step 180 benchmarks/overhead.py --device cuda ;;
    training) step 300 benchmarks/training.py --device cuda --rounds 5 --write ;;
    kernels) step 570 benchmarks/kernels.py --device cuda --ahead 8 --rounds 5 --budget 400 --write ;;
    *) echo "no part $1" | tee -a "$failures" ;;
    esac
}

if ! "$python" -c "import minidynamo._C" 2>/dev/null; then
    "$python" setup.py -q build_ext --inplace || exit 1
fi
for name in "$@"; do
    part "$name" | tee -a "$log"
    if [ "$name" = check ] && [ -s "$failures" ]; then
        break
    fi
done
[ ! -s "$failures" ]
