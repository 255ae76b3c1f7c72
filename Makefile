# make fuzz     random programs, eager against compiled: ARGS="--kind tensors --programs 20000 --seed 1"
# make sweep    all of torch's operators, eager against compiled; goes on where it stopped, and writes
#               docs/operators.md: ARGS="--dtypes float32 --compare failures"
# make demo     set up everything and run the main job
# make test     set up everything and run the tests
# make check    linters, formatting, types
# make build    set up what running needs: .venv, torch where there is none, the extension
#
# TESTS    what `make test` runs; JOBS: by how many processes (0: in this one, for debuggers)
# PYTHON   the interpreter to use (3.11 to 3.13). Packages it has are used as they are.
# TORCH    what pip shall install where there is no torch, for example
#          TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
PYTHON ?= python3
TORCH ?=
TESTS ?= tests
JOBS ?= 2
ARGS ?=
RUN = .venv/bin/python
SETUP = $(PYTHON) tools/setup_env.py --torch "$(TORCH)"

.PHONY: demo test fuzz sweep check build clean

demo: build
	$(RUN) examples/transformer_block.py $(ARGS)

build:
	@$(SETUP)

test:
	@$(SETUP) test
	$(RUN) -m pytest -n $(JOBS) --dist worksteal $(TESTS) $(ARGS)

fuzz:
	@$(SETUP) test
	$(RUN) tests/fuzz $(ARGS)

sweep:
	@$(SETUP) test sweep
	$(RUN) tests/sweep/op_sweep.py --report docs/operators.md $(ARGS)

check:
	@$(SETUP) check
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

clean:
	rm -rf .venv build dist minidynamo.egg-info minidynamo/_C*.so .pytest_cache .ruff_cache .mypy_cache
