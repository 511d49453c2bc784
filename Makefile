# The commands of this repository. `make` alone explains them: each `##` below is its help.

.DEFAULT_GOAL := help
.PHONY: help test test-guest test-verbs test-ycsb validate-ns3 demo bench dist setup

help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

test: ## Install what tests need, then run every check and every test.
	@scripts/setup.sh test
	@scripts/test.sh

test-guest: ## Boot a virtual machine whose disk is a volume.
	@scripts/setup.sh guest
	@scripts/guest.sh

test-verbs: ## Reach memory over RDMA, in a virtual machine with a device in software.
	-@scripts/setup.sh verbs
	@scripts/verbs.sh

test-ycsb: ## Run YCSB on a pool.
	@scripts/setup.sh ycsb
	@scripts/ycsb.sh

validate-ns3: ## Compare the simulated network with ns-3 (some ten minutes of a processor).
	-@scripts/setup.sh ns3
	@cargo xtask ns3

demo: ## Four tenants on one disk, then one policy along the whole way of a request.
	@scripts/setup.sh demo
	cargo build --release --locked --package tidegate --package tidegate-lab \
		--package tidegate-preload
	target/release/tidegate-lab demo
	target/release/tidegate-lab demo end-to-end --short

bench: ## Measure Tidegate beside its peers.
	@scripts/setup.sh bench
	cargo build --release --locked --package tidegate --package tidegate-lab \
		--package tidegate-preload --package tidegate-capi --features tidegate-lab/peers
	target/release/tidegate-lab bench

dist: ## Build the programs as packages have them: small, with all optimizations (some ten minutes).
	cargo build --profile dist --locked --package tidegate --package tidegate-lab \
		--package tidegate-preload --package tidegate-capi

setup: ## Install everything that test, demo and bench need.
	@scripts/setup.sh
