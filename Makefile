# Two commands do everything: `make demo` and `make test`. Each installs what is missing first.
SHELL := /bin/bash
RECIPES := -p reef-recipe-sao
GUESTS := -p reef-guest-faults -p reef-guest-own-loss
EXAMPLES := -p reef-recipe --example best-of --example exact-match --example reinforce
WASM := --target wasm32-wasip2 --profile recipe
REEF := target/debug/reef

.PHONY: demo test setup setup-tests build recipes lint bench bench-table learning-table clean-deps

## Watch a model learn from its own traffic.
demo: setup recipes build
	$(REEF) demo $(ARGS)

## Install what is missing, build, run every test.
test: setup-tests recipes build
	cargo build $(GUESTS) $(WASM)
	cargo build $(EXAMPLES) $(WASM)
	cargo test --workspace --doc
	cargo test --workspace --lib --bins --tests

## Figures of this machine.
bench: setup recipes build
	$(REEF) bench $(ARGS)

## The table of the README: the demo on three seeds (about a quarter of an hour).
learning-table: setup recipes build
	scripts/learning-table.sh
	python3 scripts/fill-readme.py

## The figures of the README.
bench-table: setup recipes build
	$(REEF) bench --json > docs/bench.json
	python3 scripts/fill-readme.py

setup:
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh --tests

build:
	cargo build -p reef

recipes:
	cargo build $(RECIPES) $(WASM)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

clean-deps:
	rm -rf .deps
