# Every target does its own set-up; a second run of anything is quick.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
NODES ?= 3
# local: a cluster that this machine builds and runs. kind: needs Docker. own: that of KUBECONFIG. Empty: hack/demo chooses and says why.
CLUSTER ?=
EXAMPLE ?= addition-smollm2
BENCHES := planner elasticity quality relay rollout reward-timeout rollpacker rollpacker-real stream laminar pat pat-real repack repack-real staleness store agents turns trainer-data operator recovery

FAULTS ?= 100

PYTHON ?= python3

BASE ?= HEAD

.PHONY: help setup demo chaos check unit test test-all mutants gpu lint docs reference down cluster-up cluster-down bench

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

setup:  ## make .venv with everything in it
	@hack/setup

demo: setup  ## a real cluster, the operator, an RLJob trained to the end; EXAMPLE=…, CLUSTER=local|kind, or KUBECONFIG=…
	@$(RUN) CLUSTER=$(CLUSTER) hack/demo $(EXAMPLE)

chaos: setup  ## real jobs on a local cluster, and faults of every kind, agents' and switches' too; FAULTS=100 in all, then the histories are checked
	@$(RUN) python -m hack.chaos --every --faults $(FAULTS) --json build/chaos.json

check:  ## lint, and the unit tests that the working tree's change needs, goal 90 s; BASE=COMMIT compares with that one
	@hack/test check --base $(BASE)

unit:  ## the tests that need neither a cluster nor an engine
	@hack/test unit

test:  ## lint and tests of every kind, a row of each slow family, 50 mutants; PACKAGE=relay: every test of one package
	@CLUSTER=$(CLUSTER) hack/test $(if $(PACKAGE),package $(PACKAGE),test)

test-all:  ## every row of every test, on every Kubernetes minor, and every mutant
	@CLUSTER=$(CLUSTER) hack/test test-all

mutants: setup  ## every mutant, in copies of the tree; PACKAGE=relay: those of one package
	@$(RUN) python -m hack.mutants $(if $(PACKAGE),--package $(PACKAGE))

gpu:  ## the tests that need an NVIDIA GPU; PYTHON=… with this folder installed: pip install -e '.[runtime,vllm,dev]'
	@$(PYTHON) -m pytest -q -m gpu tests/gpu

lint: setup  ## ruff, the glossary's words, mypy, the layers
	@$(RUN) hack/lint

docs: setup  ## the documentation site, in build/site; a broken link or an orphan page fails
	@$(RUN) NO_MKDOCS_2_WARNING=1 mkdocs build --strict

reference: setup  ## write the reference pages that repeat the sources
	@$(RUN) python -m hack.reference

cluster-up: setup  ## a Kubernetes cluster on this machine: NODES=3
	@$(RUN) hack/local_cluster/cluster up --nodes $(NODES)

cluster-down:  ## take that cluster away
	@hack/local_cluster/cluster down

down: cluster-down  ## end everything that the demo started

bench: setup  ## the benchmarks, JSON under build/bench
	@mkdir -p build/bench
	@for b in $(BENCHES); do $(RUN) hack/bench $$b --json build/bench/$$b.json || exit 1; done
