# The door to everything. A machine needs Rust, Python 3.10 or newer with venv, and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEEL := $(VENV)/wheel
GENERATE := cargo run --quiet --locked -p cursus-bindings-common --bin generate
PYTHON_FILES := python/cursus_consumer python/tests examples demo bench scripts

.DEFAULT_GOAL := help
.PHONY: help demo test simulate explore mutants faults lint bench soak deep generate python

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: python ## Watch a group read a cluster and live through failures; or BROKERS=h:p[,h:p] TOPIC=t GROUP=g for a real one
	@$(BIN)/python demo $(if $(BROKERS),--brokers '$(BROKERS)') $(if $(TOPIC),--topic '$(TOPIC)') $(if $(GROUP),--group '$(GROUP)')

test: python ## Run every test
	cargo test --workspace --locked
	$(BIN)/python -m pytest -c python/pyproject.toml python/tests

explore: ## Take membership through every order of events in larger worlds, and let threads meet at the queue: minutes, 3 GB
	cargo test --release --locked -p cursus-consumer --lib -- --ignored --nocapture membership::exploration delivery::interleavings

lint: python ## Check formatting, lints, types, and that what is generated is current
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(GENERATE) -- --check
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --check $(PYTHON_FILES)
	$(BIN)/mypy --config-file python/pyproject.toml python/cursus_consumer python/tests examples demo bench scripts
	$(BIN)/python -m mypy.stubtest cursus_consumer._native
	$(BIN)/python scripts/check_version.py

bench: python ## Measure the engine and Python beside a bare loop that reads the same frames
	cargo build --release --locked -p cursus-bench -p cursus-embedded
	$(BIN)/python bench/run.py $(ARGS)

simulate: ## Run seeded schedules of faults on a simulated network and clock. SEEDS=10000; or SEED=n for all that happens in one; ARGS=--shrink
	cargo run --release --locked -p cursus-simulation -- $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000)) $(ARGS)

deep: ## What takes long, most of a day: 100,000 seeds, large worlds of the exploration, deliberate faults, an hour of soak, mutation
	$(MAKE) simulate SEEDS=$(or $(SEEDS),100000) ARGS=--keep-going
	$(MAKE) explore
	$(MAKE) faults
	$(MAKE) soak
	$(MAKE) mutants

soak: ## A group of three processes under a fault every 20 s: what is lost, what grows. MINUTES=60; ARGS='--seed 1'
	cargo run --release --locked -p cursus-soak -- --minutes $(or $(MINUTES),60) $(ARGS)

# The quick tests first; what they let through meets the exploration of membership and the engine's tests on a cluster. A
# mutant may loop for ever and take all memory with it, hence the limits. Exit codes 2 and 3 say that some got through. A part is
# chosen by -F, since --shard would count anew in the second pass and take others.
MUTANTS := ulimit -v 12000000; PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo mutants --output target/mutants

mutants: target/tools/bin/cargo-mutants ## Break membership, fences, offsets and commits in small ways, see which no test notices: hours. ARGS='-F membership/'
	@rm -rf target/mutants && mkdir -p target/mutants
	$(MUTANTS) --timeout 20 $(ARGS) -- --lib -- --skip in_every_order || [ $$? -eq 2 -o $$? -eq 3 ]
	RUST_TEST_THREADS=24 && export RUST_TEST_THREADS && \
	$(MUTANTS) --iterate --timeout 120 $(ARGS) -- --lib --test streaming --test streams --test transactions

faults: ## Put deliberate faults into a copy of the engine, each to be caught by the test it names: some minutes. FAULTS='name name'
	@$(PYTHON) scripts/faults.py $(FAULTS)

target/tools/bin/cargo-mutants:
	cargo install --locked --version 27.1.0 --root target/tools cargo-mutants

generate: ## Write what is generated from the tables: settings, errors, statistics, the embedded cluster's commands
	$(GENERATE)

python: $(VENV)/.ready ## Build the Python package and leave it installed in .venv
	@rm -rf $(WHEEL)
	@echo "Building the engine and the Python package: some minutes the first time, seconds later."
	@cd python && ../$(BIN)/maturin build --quiet --locked --release --out ../$(WHEEL)
	@$(BIN)/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(WHEEL)/*.whl

# The tools are installed again only when their list changes.
$(VENV)/.ready: python/requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r $<
	@touch $@
