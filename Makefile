# Nothing is needed but Python 3.11 or later and pip. Everything goes into .venv; data/ and runs/ are made by the jobs.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo check test test-all first-half-hour test-ray-range test-python lint ruff types mypy imports compile bench bench-elastic bench-sweep bench-deadline bench-mixture bench-sequences bench-preparation bench-score bench-tables docs k8s slurm soak horovod deepspeed clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
INSTALLED_TEST := $(VENV)/installed-for-tests
PIP_INSTALL := $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check
# One line per step of pip. Its errors reach the screen as they are; its warnings are about the host's settings.
STEPS := 2> >(grep -v '^WARNING' >&2) | \
  awk '/^(Collecting|Building|Installing|Successfully)/ { sub(/ \(from .*/, ""); print "   " substr($$0, 1, 100); fflush() }'

help:
	@echo "make demo    train the click model on a click log, with 2 workers under Ray; minutes, install included"
	@echo "make check   lint, types, and the unit tests that start no process: two minutes, at every save"
	@echo "make test    every check, and a test of every mechanism; TEST_PROCESSES=4 run side by side"
	@echo "make test-all  the same with all variations of each mechanism; about twice as long"
	@echo "make test-ray-range RAY=2.61.0  what exercises Ray, on another version of it; several, if RAY names several"
	@echo "make test-python PYTHON=3.13  the unit tests and a run on Ray, on another Python, in an environment of its own"
	@echo "make first-half-hour  every command of README, the tutorial and the start pages, in an empty environment"
	@echo "make lint    the checks without the tests"
	@echo "make horovod build Horovod for the PyTorch in .venv, kept in ~/.cache/forebay/wheels for the next time, and install it"
	@echo "make bench   the loader beside its peers, each in its own environment; BENCH_ARGS='--rows 100000 --repeats 2' for less"
	@echo "make bench-elastic  what a change of workers costs, beside the stock executors; BENCH_ARGS='--repeats 1' for less"
	@echo "make bench-sweep  8 trials over one dataset: bytes from the source and wall time, beside its peers; BENCH_ARGS='--repeats 1' for less"
	@echo "make bench-deadline  sweeps by a deadline, beside Ray's ASHA; BENCH_ARGS='--sweeps 100 --digits 20' for less"
	@echo "make bench-mixture  three datasets by weights, beside its peers; BENCH_ARGS='--rows 50000' for less"
	@echo "make bench-sequences  windows over series: windows/s, memory and first batch, beside its peers; BENCH_ARGS='--sets 100000x7 --repeats 1' for less"
	@echo "make bench-preparation  a job that prepares and trains, run twice, beside Ray Data into Ray Train; BENCH_ARGS='--repeats 1' for less"
	@echo "make bench-score  batch sizes of the scorer, and 10,000 rows under kills of workers, driver and nodes; BENCH_ARGS='--kills 6' for less"
	@echo "make bench-tables  a table of 10 million rows on 2 and 4 ranks, beside dense gradients: bytes, CPU time, memory; needs root"
	@echo "make docs    the site, into build/site: every link, page and public name is checked"
	@echo "make dist    wheel and source archive: built, checked by twine, and tried in an empty environment"
	@echo "make k8s     deployment on real API servers of Kubernetes, from binaries in ~/.cache/forebay/control-plane"
	@echo "make slurm   training on a SLURM cluster of this machine: requeued, cancelled, a node lost; root, Debian"
	@echo "make image   the scripts of deploy/docker in a fresh root file system of Debian; minutes, needs root and debootstrap"
	@echo "make bench-llm  fine-tuning beside HF Trainer, TRL, torchtune, LLaMA-Factory and axolotl; BENCH_ARGS='--rounds 1' for less"
	@echo "make soak    1,000 randomized fault cases, results into docs/reliability.md; SOAK_ARGS='--cases 100 --seed 7' for others"
	@echo "make clean   remove .venv, caches and build folders; data/ and runs/ stay"

demo: $(INSTALLED)
	@echo "== demo: forebay run jobs/train_ctr.py"
	@$(BIN)/python -m forebay run jobs/train_ctr.py

# A test under Ray waits for two thirds of its time, for processes to start and for deadlines. So two processes run
# those, and two the tests that compute (tests/schedule.py). They keep two cores busy for 99 % of the time; three of
# them for 86 %.
TEST_PROCESSES ?= 4

# Tests start some 300 processes on few cores. Libraries that start a thread per core spin at each other's expense, and
# a quarter of the time of an import goes into looking for garbage: `test-all` and `soak` run with both as they are.
test k8s: export OMP_NUM_THREADS = 1
test k8s: export OPENBLAS_NUM_THREADS = 1
test k8s: export FOREBAY_RARE_GC = 1
# Workers of Ray fork from a process that has imported PyTorch: 0.2 CPU seconds instead of 2 each (tests/preloaded).
test: export FOREBAY_PRELOAD = 1
# Some images forbid bytecode files. Then pytest rewrites each module of tests, and each process that they start compiles
# Forebay again: 4.5 and 0.15 CPU seconds.
test k8s: export PYTHONDONTWRITEBYTECODE =

# Without a C++ compiler the tests that need Horovod skip, and say so; everywhere else they run. Types and imports are
# checked beside pytest, half of which waits for processes; what they find is shown last. A few tests that failed run
# again, alone.
test: ruff
	@echo "== horovod"
	@$(BIN)/python scripts/build_horovod.py --or-skip
	@$(BIN)/python scripts/fetch_helm.py --or-skip
	@scripts/install_slurm.sh --or-skip
	@$(MAKE) --no-print-directory deepspeed
	@$(MAKE) --no-print-directory types > $(VENV)/types.log 2>&1 & types=$$!; failed=; \
	  $(MAKE) --no-print-directory compile || failed=1; \
	  echo "== pytest"; rm -f .pytest_cache/v/cache/lastfailed; \
	  $(BIN)/python -m pytest --processes $(TEST_PROCESSES) || { [ $$? = 1 ] && $(BIN)/python -m tests.again; } || failed=1; \
	  wait $$types || failed=1; cat $(VENV)/types.log; [ -z "$$failed" ]

check: export OMP_NUM_THREADS = 1
check: export OPENBLAS_NUM_THREADS = 1
check: export FOREBAY_RARE_GC = 1
check: lint
	@echo "== pytest, without processes"
	@$(BIN)/python -m pytest --quick --processes 2 -p no:cacheprovider --quiet tests/unit tests/house

test-all: lint
	@echo "== horovod"
	@$(BIN)/python scripts/build_horovod.py --or-skip
	@$(BIN)/python scripts/fetch_helm.py --or-skip
	@$(BIN)/python scripts/fetch_nfs.py --or-skip
	@scripts/install_slurm.sh --or-skip
	@$(MAKE) --no-print-directory deepspeed
	@echo "== pytest, with all variations"
	@$(BIN)/python -m pytest --processes $(TEST_PROCESSES) -m "not soak"
	@$(MAKE) --no-print-directory first-half-hour

first-half-hour: $(INSTALLED_TEST)
	@echo "== every command of README, the tutorial and the start pages, in an empty environment"
	@scripts/first_half_hour.sh

# After all of them, it fails if one did.
test-ray-range: $(INSTALLED_TEST)
	@[ -n "$(RAY)" ] || { echo "name versions: make test-ray-range RAY='2.56.1 2.61.0'"; exit 2; }
	@failed=; for version in $(RAY); do $(BIN)/python scripts/try_ray.py $$version || failed+=" $$version"; done; \
	  [ -z "$$failed" ] || { echo "failed on Ray$$failed"; exit 1; }

# Needs no .venv: the environment of another Python is in ~/.cache/forebay/pythons.
test-python:
	@python3 scripts/try_python.py $(PYTHON) $(TESTS)

lint: $(INSTALLED_TEST)
	@$(MAKE) --no-print-directory --jobs 2 mypy ruff imports

types: $(INSTALLED_TEST)
	@$(MAKE) --no-print-directory mypy
	@$(MAKE) --no-print-directory imports

# In a fresh clone, the processes of pytest would wait for each other's kernels: 8 CPU seconds.
compile: $(INSTALLED_TEST)
	@echo "== kernels, compiled"
	@$(BIN)/python -c 'from forebay.data.parquet import page_kernels; page_kernels.load_all()'

mypy: $(INSTALLED_TEST)
	@echo "== mypy"
	@$(BIN)/mypy

ruff: $(INSTALLED_TEST)
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

imports: $(INSTALLED_TEST)
	@echo "== import-linter"
	@$(BIN)/lint-imports

horovod: $(INSTALLED)
	@echo "== horovod: scripts/build_horovod.py"
	@$(BIN)/python scripts/build_horovod.py

# Not an extra of the tests: with build isolation, pip would download another PyTorch to build it. Where it cannot be
# installed, the tests that need it skip, and say so.
deepspeed: $(INSTALLED_TEST)
	@echo "== deepspeed"
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("deepspeed") is None)' || \
	  { $(PIP_INSTALL) "setuptools>=77" wheel && \
	    $(PIP_INSTALL) --no-build-isolation "deepspeed>=0.19.8,<0.20"; } $(STEPS) || \
	  echo "   deepspeed cannot be installed here: the tests that need it skip"

bench: $(INSTALLED)
	@echo "== python -m bench.loader $(BENCH_ARGS)"
	@$(BIN)/python -m bench.loader $(BENCH_ARGS)

bench-elastic: $(INSTALLED)
	@echo "== python -m bench.elastic $(BENCH_ARGS)"
	@$(BIN)/python -m bench.elastic $(BENCH_ARGS)

bench-sweep: $(INSTALLED)
	@echo "== python -m bench.sweep $(BENCH_ARGS)"
	@$(BIN)/python -m bench.sweep $(BENCH_ARGS)

bench-deadline: $(INSTALLED)
	@echo "== python -m bench.deadline $(BENCH_ARGS)"
	@$(BIN)/python -m bench.deadline $(BENCH_ARGS)

bench-mixture: $(INSTALLED)
	@echo "== python -m bench.mixture $(BENCH_ARGS)"
	@$(BIN)/python -m bench.mixture $(BENCH_ARGS)

bench-sequences: $(INSTALLED)
	@echo "== python -m bench.sequences $(BENCH_ARGS)"
	@$(BIN)/python -m bench.sequences $(BENCH_ARGS)

bench-preparation: $(INSTALLED)
	@echo "== python -m bench.preparation $(BENCH_ARGS)"
	@$(BIN)/python -m bench.preparation $(BENCH_ARGS)

bench-score: $(INSTALLED)
	@echo "== python -m bench.score $(BENCH_ARGS)"
	@$(BIN)/python -m bench.score $(BENCH_ARGS)

bench-tables: $(INSTALLED)
	@echo "== python -m bench.tables $(BENCH_ARGS)"
	@$(BIN)/python -m bench.tables $(BENCH_ARGS)

# Half of the time goes into waits, for lost clusters and for Ray to start: two processes, each with its own clusters.
k8s: $(INSTALLED_TEST)
	@echo "== pytest, on a control plane"
	@$(BIN)/python -m pytest -m k8s --processes 2 tests/k8s

docs: $(INSTALLED)
	@echo "== the site: scripts/build_docs.py"
	@$(PIP_INSTALL) -e '.[docs]' $(STEPS)
	@$(BIN)/python scripts/build_docs.py

# Each node has a network and a process table of its own, so that its end is that of a machine.
slurm: $(INSTALLED_TEST)
	@echo "== pytest, on a SLURM cluster"
	@scripts/install_slurm.sh
	@$(BIN)/python -m pytest -s -m "slurm or not slurm" tests/slurm

image: $(INSTALLED_TEST)
	@echo "== the image's scripts, in a fresh root file system of Debian"
	@$(BIN)/python -m pytest -m soak tests/unit/fleet/test_image.py

dist: $(INSTALLED_TEST)
	@echo "== wheel and source archive: built, checked, and tried in an empty environment"
	@$(PIP_INSTALL) build twine $(STEPS)
	@$(BIN)/python -m pytest -m "" tests/unit/test_distribution.py

bench-llm: $(INSTALLED)
	@echo "== python -m bench.llm $(BENCH_ARGS)"
	@$(PIP_INSTALL) -e '.[llm,ray]' 'matplotlib>=3.8' $(STEPS)
	@$(BIN)/python -m bench.llm $(BENCH_ARGS)

# Faults under Ray and without, two at a time; the seed is printed, and each failure with the command that runs it again.
soak: $(INSTALLED_TEST) compile
	@echo "== soak: python -m tests.soak $(SOAK_ARGS)"
	@$(BIN)/python -m tests.soak --table docs/reliability.md $(SOAK_ARGS)

$(BIN)/python:
	@echo "== $(PYTHON) -m venv $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Done again only when pyproject.toml changes: the install is editable.
$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "== installing forebay into $(VENV) (PyTorch and Ray are large: minutes the first time)"
	@$(PIP_INSTALL) -e '.[ray]' 'matplotlib>=3.8' $(STEPS)
	@touch $@

$(INSTALLED_TEST): pyproject.toml | $(BIN)/python
	@echo "== installing forebay and what its tests need into $(VENV) (PyTorch and Ray are large: minutes the first time)"
	@$(PIP_INSTALL) -e '.[test]' $(STEPS)
	@echo 'import os, gc; "FOREBAY_RARE_GC" in os.environ and gc.set_threshold(100_000, 50, 100)' \
	  > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/forebay_rare_gc.pth"
	@touch $(INSTALLED) $@

clean:
	rm -rf $(VENV) build dist platform/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
