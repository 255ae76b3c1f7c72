"""Every operator of torch's table against eager; the worker processes, and the report.

    python tests/sweep/op_sweep.py --dtypes float32 --variants function grad
    python tests/sweep/op_sweep.py --compare          # also what torch.compile makes of it
    python tests/sweep/op_sweep.py --device cuda --workers 12 --budget 200

Results are lines of JSON in a file (`--results`); what is there already is not run again. A worker
that dies or takes too long is replaced; it is also replaced when it has grown past `--memory` MiB.
"""

import argparse
import json
import os
import random
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT)]


def resident():
    """MiB of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // 2**20


def work(options):
    """The worker: cases as lines on standard input, results as lines on the first output."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    from sweep_cases import Case
    from sweep_check import Compiler, check

    torch.set_num_threads(options.threads)
    compiler = Compiler(options.compiler)
    channel.write("{}\n")
    channel.flush()
    for line in sys.stdin:
        case = Case(**json.loads(line))
        started = time.time()
        result = check(compiler, case, options.samples).to_dict()
        result["seconds"] = round(time.time() - started, 2)
        result["memory"] = resident()
        channel.write(json.dumps(result) + "\n")
        channel.flush()


class Worker:
    """A process that runs cases."""

    def __init__(self, options, compiler):
        command = [sys.executable, __file__, "--work", "--compiler", compiler]
        command += ["--samples", str(options.samples), "--threads", str(options.threads)]
        self.errors = open(options.log, "a")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.answer(300)

    def answer(self, seconds):
        """The next line, as data; None where the process died; raises TimeoutError."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise TimeoutError
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def run(self, case, seconds):
        try:
            self.process.stdin.write(json.dumps(case.to_dict()) + "\n")
            self.process.stdin.flush()
            found = self.answer(seconds)
        except TimeoutError:
            return {"kind": "timeout", "reason": f"more than {seconds} s", "dead": True}
        except BrokenPipeError:
            found = None
        if found is not None and "CUDA error" in found.get("reason", ""):
            found["dead"] = True  # such a process cannot use its GPU any more
        if found is None:
            reason = f"the process ended with {self.process.wait()}"
            return {"kind": "crash", "reason": reason, "dead": True}
        return found

    def close(self):
        self.process.kill()
        self.process.wait()
        self.errors.close()


def read(path):
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["compiler"], row["op"], row["dtype"], row["variant"]): row for row in rows}


def sweep(options, compiler, todo):
    """Run the cases that have no result yet, each worker the next one that is left."""
    done = read(options.results)
    todo = [c for c in todo if (compiler, c.op, c.dtype, c.variant) not in done]
    waiting, lock = iter(list(enumerate(todo))), threading.Lock()

    def take():
        with lock:
            return next(waiting, None) if time.time() < options.end else None

    def record(file, position, row):
        with lock:
            file.write(json.dumps(row) + "\n")
            file.flush()
            if row["kind"] not in ("ok", "skip"):
                name = f"{row['op']} {row['dtype']} {row['variant']}"
                print(f"{position}/{len(todo)}", name, row["kind"], row["reason"][:200])
                sys.stdout.flush()

    def serve(file):
        worker = None
        while (taken := take()) is not None:
            position, case = taken
            worker = worker or Worker(options, compiler)
            found = worker.run(case, options.timeout)
            if found.pop("dead", False) or found.get("memory", 0) > options.memory:
                worker.close()
                worker = None
            record(file, position, {"compiler": compiler, **case.to_dict(), **found})
        if worker is not None:
            worker.close()

    with open(options.results, "a") as file:
        threads = [threading.Thread(target=serve, args=(file,)) for _ in range(options.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--ops", nargs="*", help="names of operators (default: all)")
    add("--dtypes", nargs="*", default=None)
    add("--variants", nargs="*", default=None)
    add("--subset", type=int, help="only so many cases, chosen by --seed")
    add("--seed", type=int, default=0)
    add("--samples", type=int, default=6, help="sample inputs of a case, at most")
    add("--threads", type=int, default=2)
    add("--device", default="cpu", help="where the tensors are")
    add("--workers", type=int, default=1, help="processes at a time")
    add("--budget", type=float, default=float("inf"), help="seconds; no case begins after them")
    add("--timeout", type=int, default=180, help="seconds for a case")
    add("--memory", type=int, default=4000, help="MiB at which a worker is replaced")
    add("--results", type=Path, default=Path("build/sweep.jsonl"))
    add("--log", default=os.devnull, help="where the workers' standard error goes")
    add("--compare", choices=["failures", "all"], nargs="?", const="all")
    add("--report", type=Path, help="write the tables to this file")
    add("--compiler", default="minidynamo", choices=["minidynamo", "torch"])
    add("--work", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = arguments()
    options.end = time.time() + options.budget
    os.environ["SWEEP_DEVICE"] = options.device
    if options.work:
        return work(options)
    from sweep_cases import DTYPES, VARIANTS, cases
    from sweep_report import write_report

    options.results.parent.mkdir(parents=True, exist_ok=True)
    todo = cases(options.dtypes or list(DTYPES), options.variants or VARIANTS)
    if options.ops:
        todo = [case for case in todo if case.op in options.ops]
    if options.subset:
        todo = random.Random(options.seed).sample(todo, min(options.subset, len(todo)))
    sweep(options, options.compiler, todo)
    if options.compare:
        rows = read(options.results)
        failed = {key[1:] for key, row in rows.items() if row["kind"] not in ("ok", "skip")}
        if options.compare == "failures":
            todo = [c for c in todo if (c.op, c.dtype, c.variant) in failed]
        sweep(options, "torch", todo)
    if options.report:
        write_report(options.report, read(options.results))


if __name__ == "__main__":
    main()
