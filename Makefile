# Two commands do everything: `make demo` and `make test`. Each installs what is missing first.
SHELL := /bin/bash
RECIPES := -p reef-recipe-gepa -p reef-recipe-harness-evolve -p reef-recipe-meta-harness -p reef-recipe-opd \
	-p reef-recipe-openclaw-rl -p reef-recipe-record-only -p reef-recipe-reefine -p reef-recipe-sao -p reef-recipe-sao-grpo-dis \
	-p reef-recipe-sdft -p reef-recipe-sdpo -p reef-recipe-sft -p reef-recipe-skillclaw -p reef-recipe-ttt-discover \
	-p reef-verifier-circle-packing -p reef-verifier-erdos-overlap
GUESTS := -p reef-guest-faults -p reef-guest-own-loss
EXAMPLES := -p reef-recipe --example best-of --example exact-match --example reinforce --example verified
WASM := --target wasm32-wasip2 --profile recipe
REEF := target/debug/reef

.PHONY: demo demo-harness test guests languages fuzz sandbox-table setup setup-tests build recipes lint bench bench-table learning-table clean-deps

## Watch a model learn from its own traffic.
demo: setup recipes build
	$(REEF) demo $(ARGS)

## Watch an agent's harness evolve from one report; no key, no network.
demo-harness: setup recipes build
	$(REEF) demo-harness $(ARGS)

## Install what is missing, build, run every test.
test: setup-tests recipes guests languages
	cargo build --workspace --lib --bins --tests
	cargo test --workspace --doc
	cargo test --workspace --lib --bins --tests --no-fail-fast

## Only what the sandbox's own figures need.
guests: recipes
	cargo build $(GUESTS) $(WASM)
	cargo build $(EXAMPLES) $(WASM)

## The recipe best-of in Python, TypeScript and C, and sao in the first two, under target/languages.
languages:
	scripts/setup-languages.sh
	mkdir -p target/languages
	sdk/c/build.sh sdk/c/examples/best_of.c target/languages/best-of-c.wasm
	sdk/js/build.sh sdk/js/examples/best-of.ts target/languages/best-of-js.wasm
	sdk/python/build.sh sdk/python/examples/best_of.py target/languages/best-of-python.wasm
	sdk/js/build.sh sdk/js/examples/sao.ts target/languages/sao-js.wasm
	sdk/python/build.sh sdk/python/examples/sao.py target/languages/sao-python.wasm

## Hostile bytes against the loader, the lifting of answers and a registry's texts, for ten minutes each (FUZZ_SECONDS).
FUZZ_SECONDS ?= 600
fuzz:
	REEF_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test -p reef-sandbox --test fuzz -- --nocapture
	REEF_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test -p reef-registry --test fuzz_manifest -- --nocapture

## Figures of this machine.
bench: setup guests build
	$(REEF) bench $(ARGS)

## The table of the README: the demo on three seeds (about a quarter of an hour).
learning-table: setup recipes build
	scripts/learning-table.sh
	python3 scripts/fill-readme.py

## The figures of the README.
bench-table: setup guests languages build
	$(REEF) bench --json > docs/bench.json
	python3 scripts/fill-readme.py

## The sandbox's figures of the README; no model is needed.
sandbox-table: setup guests languages build
	$(REEF) bench --sandbox --json > docs/sandbox.json
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
