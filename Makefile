# `make` alone lists the targets. Override on the command line: PYTHON=python3.12 make demo
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# Set by many containers. Each process of the tests would compile anew all that it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 6
DEMO ?= --items 2
VALIDATE ?= --items all
PYTHONS ?= 3.11 3.12 3.13
TESTS ?= tests
PARTS ?=
MINUTES ?= 5
# make test-without PLUGIN=view; unset = one at random
PLUGIN ?=
# make test-view IMAGES=docs/images makes the pictures of docs/plugins/view.md anew
IMAGES ?=
MODAL_OLDEST ?= $(shell sed -n 's/^modal = .*>=\([0-9.]*\),.*/\1/p' pyproject.toml)
MODAL_TESTS := $(wildcard tests/plugins/selfcheck) tests/sandbox/test_out_of_sight.py tests/sandbox/test_modal_kernels.py
LIVE ?= .live
TRAJECTORIES ?= 200
EPISODES ?= 100
HARBOR_SANDBOX ?= local
LIVE_TESTS ?= tests/live
SEED ?= 1
GRADERS ?= 0
PREFETCH ?= 0
PORT ?= 21100
TRAINERS := tests/plugins/trainers
# Adapters whose trainer has a lock; make test-trainers NAME=trl
NAME := $(patsubst $(TRAINERS)/requirements/%.txt,%,$(wildcard $(TRAINERS)/requirements/*.txt))

BIN := $(VENV)/bin
UV ?= $(BIN)/uv
PACKAGES := hermes_queue workers producers envs hermes_plugins
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --custom-compile-command "make lock"
SLOW := test-fleet|test-without|test-exhaustive|test-images|test-agents|test-engines|test-engine-kill|test-harbor|test-trainers|tamper|validate|chaos|test-failover|test-kubernetes|datasets|test-atropos|test-prometheus|test-compose|test-image|test-flower|test-view|test-pages|test-gvisor|test-modal-docker|test-modal-oldest|test-aimock|test-vllm|test-sglang|soak
RUN_EXTRAS := --extra producer --extra worker --extra local --extra images --extra view

.PHONY: test-without .engine-docker .engine-podman test-failover test-kubernetes help demo test test-all test-exhaustive test-fleet test-agents test-engines test-engine-kill test-harbor test-aimock test-atropos test-compose test-flower test-image test-images test-modal-oldest test-pages test-prometheus \
	test-gvisor test-modal-docker test-sglang test-trainers test-view test-vllm validate tamper chaos localmodal datasets lint audit sbom format bench bench-view soak lock lock-programs lock-trainers docs site clean redis tools lint-files

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

demo: $(VENV)/.run ## Install what is needed, then two trajectories end to end on this machine
	$(BIN)/python -m producers.swe_smith $(DEMO)

test: redis $(VENV)/.dev ## Install the development tools, then linters and the tests that need nothing but this machine
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line lint tools $(VENV)/.compiled
	$(BIN)/python -m pytest -n $(JOBS) --durations 40 --durations-min 1 $(TESTS)
	@echo; echo "Not run, since it takes long or needs more than this machine (make test-all runs what can be run here):"
	@$(MAKE) --no-print-directory help | grep -E '^($(SLOW)) ' | sed 's/^/  /'

test-without: redis ## Linters, types and tests of a copy without one plugin: PLUGIN=NAME, all, or one at random
	JOBS=$(JOBS) TESTS="$(TESTS)" bash tests/support/without_plugin.sh "$(PLUGIN)"

test-all: $(VENV)/.dev ## Everything that `make test` leaves out, one table at the end (hours)
	$(BIN)/python tests/support/run_targets.py $(subst |, ,$(SLOW))

test-exhaustive: redis $(VENV)/.dev ## The same proofs with the other Redis servers, users, protocols and seeds
	$(BIN)/python -m pytest -n $(JOBS) -m exhaustive tests

test-fleet: redis $(VENV)/.dev ## Fleets that are killed or limited together, several whole runs, suites as an ordinary user, the contract on Modal, and more cases of gradings in sandboxes (8 minutes)
	$(BIN)/python -m pytest -n $(JOBS) -m 'fleet and not exhaustive' tests

test-modal-oldest: redis ## The Modal backend and its server with the oldest SDK we take
	$(MAKE) VENV=$(VENV)-modal-oldest $(VENV)-modal-oldest/.dev
	$(VENV)-modal-oldest/bin/python -m pip --disable-pip-version-check --quiet \
		install 'modal==$(MODAL_OLDEST)'
	REPETITIONS=1 $(VENV)-modal-oldest/bin/python -m pytest -n $(JOBS) -k 'modal or as_an_ordinary_user' -m 'not exhaustive' \
		tests/localmodal tests/sandbox $(wildcard tests/plugins/selfcheck) tests/durability tests/integration

test-modal-docker: redis $(VENV)/.dev ## The Modal backend where root in sandboxes may do what it may in Docker, and where it may mount (as root)
	@[ "$$(id -u)" = 0 ] || { echo "make test-modal-docker needs root" >&2; exit 1; }
	BACKENDS=modal-docker $(BIN)/python -m pytest -n $(JOBS) $(MODAL_TESTS)
	BACKENDS=modal-mounts $(BIN)/python -m pytest -n $(JOBS) $(MODAL_TESTS)

test-gvisor: redis $(VENV)/.dev ## The Modal backend in sandboxes inside gVisor, as root (Debian: apt-get install runsc)
	@[ "$$(id -u)" = 0 ] && command -v runsc >/dev/null || { echo "make test-gvisor needs root, and runsc on PATH; \
	on Debian: apt-get install runsc" >&2; exit 1; }
	BACKENDS=modal-gvisor $(BIN)/python -m pytest -n $(JOBS) $(MODAL_TESTS)

test-images: $(VENV)/.dev ## Twelve Dockerfiles built without an engine, and a base image of Debian's packages (root, mmdebstrap)
	@[ "$$(id -u)" = 0 ] && command -v mmdebstrap >/dev/null || { echo "make test-images needs root and mmdebstrap; \
	on Debian: apt-get install mmdebstrap" >&2; exit 1; }
	$(BIN)/python -m pytest $(wildcard tests/plugins/*/builds)

test-aimock: $(VENV)/.dev ## 200 trajectories against a third-party server that fails half of all calls
	@command -v npm >/dev/null || { echo "make test-aimock needs Node.js 20.15 or newer, with npm" >&2; exit 1; }
	@mkdir -p $(VENV)/aimock
	@cp benchmarks/faults/package.json benchmarks/faults/package-lock.json $(VENV)/aimock/
	npm --prefix $(VENV)/aimock ci --no-fund --no-audit --loglevel=error
	$(BIN)/python -m benchmarks.faults --aimock $(VENV)/aimock

test-agents: redis $(VENV)/.dev ## Unmodified agent programs against a scripted model (installs 2.4 GB once, into the cache)
	$(BIN)/python -m pytest -n 2 tests/agents $(if $(AGENTS),-k '$(AGENTS)')

# An engine for each process: both start one, and most of the time one waits for the disk.
test-engines: $(VENV)/.dev ## The backends `docker` and `nomad` on a real Docker Engine and Podman (as root on Debian installs 95 MB)
	$(BIN)/python tests/support/container_engines.py prepare
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line .engine-docker .engine-podman

.engine-docker .engine-podman: $(VENV)/.dev
	$(BIN)/python -m pytest -rs --timeout 600 tests/plugins/*/engines \
		-k '$(if $(filter %podman,$@),podman,not podman) and ($(or $(ENGINES),test_))'

test-engine-kill: redis $(VENV)/.dev ## 200 Harbor trajectories over a dockerd that is killed among them (root; TRAJECTORIES=200)
	$(BIN)/python tests/support/container_engines.py prepare
	TRAJECTORIES=$(TRAJECTORIES) $(BIN)/python -m pytest -q -s tests/plugins/containers/engines/prove_engine_kill.py

test-harbor: redis $(VENV)/.dev ## Bundled tasks, and those in other shapes, on a real backend (HARBOR_SANDBOX=local, localmodal, docker, podman, nomad; builds images)
	$(BIN)/python -m pytest -n 2 tests/plugins/harbor/on_images tests/swe_images $(if $(TASKS),-k '$(TASKS)')

test-vllm: $(VENV)/.dev $(LIVE)/model/.made $(LIVE)/program-model/.made ## A real vLLM on this CPU serves real trajectories (3.4 GB, LIVE=.live)
	$(BIN)/python -m pytest $(LIVE_TESTS) --server vllm --server-venv $(LIVE)/vllm \
		--model-dir $(LIVE)/model --program-model-dir $(LIVE)/program-model --episodes $(EPISODES)

test-sglang: $(VENV)/.dev $(LIVE)/model/.made $(LIVE)/program-model/.made ## The same with SGLang
	PYTHON=$(PYTHON) bash tests/live/install_sglang.sh $(LIVE)/sglang $(LIVE)/vllm
	$(BIN)/python -m pytest $(LIVE_TESTS) --server sglang --server-venv $(LIVE)/sglang \
		--model-dir $(LIVE)/model --program-model-dir $(LIVE)/program-model --episodes $(EPISODES)

# An environment for each: they want different versions of the same packages.
test-trainers: redis $(NAME:%=$(VENV)-trainers-%/.made) ## Real optimiser steps, and kills, with the trainers that have an adapter (1.5 GB for NAME=trl, CPU)
	@failed=; for name in $(NAME); do \
		$(VENV)-trainers-$$name/bin/python -m pytest -rs $(TRAINERS)/training/test_$$name.py \
			$(if $(TESTS_OF),-k '$(TESTS_OF)') || failed="$$failed $$name"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

validate: $(VENV)/.run ## Oracle 1.0 and nop 0.0 on every bundled row, on each Python there is
	@for version in $(PYTHONS); do \
		$(BIN)/python -c 'import sys; from hermes_queue.sandbox.host.interpreter import prepare; \
			from hermes_queue.settings import PathSettings; \
			prepare(sys.argv[1], PathSettings().cache)' $$version 2>/dev/null \
			|| { echo "Python $$version: not on this machine"; continue; }; \
		for expected in "oracle 1" "nop 0"; do \
			set -- $$expected; echo "Python $$version, agent $$1"; \
			$(BIN)/python -m producers.swe_smith $(VALIDATE) --python $$version --agent $$1 \
				--expect-score $$2; \
		done; \
	done

tamper: $(VENV)/.run ## Every known way to cheat scores 0 on the first four bundled rows
	$(BIN)/python -m producers.swe_smith --items 4 --agent tamper --expect-score 0

localmodal: $(VENV)/.dev ## A server that speaks Modal's protocol, for the unmodified SDK without an account (PORT=21100)
	PYTHONPATH=tests/support $(BIN)/python -m localmodal --port $(PORT)

chaos: $(VENV)/.run ## Kill everything under load and prove that nothing is lost (MINUTES=5 SEED=1 GRADERS=0 PREFETCH=0)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) --graders $(GRADERS) --prefetch $(PREFETCH)

test-failover: redis $(VENV)/.dev ## Redis Sentinel: the master is killed, hangs and is cut off while 160 trajectories run; TLS (7 minutes)
	$(BIN)/python -m pytest tests/failover

test-kubernetes: redis $(VENV)/.dev ## Probes and drain of a worker as Kubernetes asks for them; the lines of docs/kubernetes.md (needs no cluster)
	$(BIN)/python -m pytest tests/kubernetes

datasets: $(VENV)/.dev redis ## Three sinks killed in the middle of a real run: no row is lost or doubled
	$(BIN)/python -m pytest -s -W default tests/e2e/proof_datasets.py

test-atropos: redis $(VENV)/.dev ## 500 groups through a real Atropos server, and through ours, while everything is killed (SEED=1)
	SEED=$(SEED) $(BIN)/python -m pytest -q -s tests/sinks/prove_atropos.py $(wildcard tests/plugins/atropos_server/prove_*.py)

test-prometheus: redis $(VENV)/.dev ## Dashboards and alerts against a real Prometheus (Debian: apt-get install prometheus)
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || { echo "no prometheus and promtool on PATH; \
	on Debian: apt-get install --no-install-recommends prometheus" >&2; exit 1; }
	$(BIN)/python -m pytest -m prometheus tests/metrics tests/plugins

test-compose: redis $(VENV)/.dev ## Every service of docker-compose.yml as a process, working together
	@command -v prometheus >/dev/null || { echo "make test-compose needs: apt-get install --no-install-recommends prometheus" >&2; exit 1; }
	$(BIN)/python -m pytest -q -W default tests/deploy/prove_compose.py

test-image: $(VENV)/.dev ## The image on a base of Debian's packages, and docker compose up, on a dockerd of its own (root)
	$(BIN)/python -m pytest -q -s -W default tests/deploy/prove_image.py

test-flower: redis $(VENV)/.dev ## What Flower shows, in a headless Chromium (needs chromium-driver)
	@command -v chromedriver >/dev/null || { echo "make test-flower needs Chromium: apt-get install chromium chromium-driver" >&2; exit 1; }
	$(BIN)/python -m pytest -q -W default tests/deploy/prove_flower.py

test-view: redis $(VENV)/.dev ## The viewer's pages in a headless Chromium, and axe-core on them (needs chromium-driver, npm)
	@command -v chromedriver >/dev/null && command -v npm >/dev/null || { echo "make test-view needs: apt-get install chromium chromium-driver npm" >&2; exit 1; }
	@mkdir -p $(VENV)/view-tools
	@cp tests/plugins/view/npm/package.json tests/plugins/view/npm/package-lock.json $(VENV)/view-tools/
	npm --prefix $(VENV)/view-tools ci --no-fund --no-audit --loglevel=error
	VIEW_TOOLS=$(VENV)/view-tools/node_modules IMAGES=$(IMAGES) $(BIN)/python -m pytest -q -s -W default tests/plugins/view/prove_*.py

test-pages: redis $(VENV)/.dev ## A run of 200 with top, Flower and Prometheus open (needs chromium-driver, prometheus)
	@command -v chromedriver >/dev/null && command -v prometheus >/dev/null || { echo "make test-pages needs: apt-get install chromium chromium-driver prometheus" >&2; exit 1; }
	$(BIN)/python -m pytest -q -s -W default tests/deploy/prove_pages.py

audit: $(VENV)/.dev ## Known vulnerabilities of what is pinned (passes, saying so, without network)
	@failed=; for lock in requirements/run.txt requirements/dev.txt requirements/image.txt hermes_queue/agent/programs/presets/*.lock; do \
		bash deploy/audit.sh $(BIN)/pip-audit $$lock || failed="$$failed $$lock"; \
	done; [ -z "$$failed" ] || { echo "audit: see$$failed" >&2; exit 1; }

sbom: $(VENV)/.dev ## A CycloneDX bill of materials of the image: dist/sbom.json
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml -o dist/sbom.json requirements/image.txt
	$(BIN)/python deploy/sbom_vendored.py dist/sbom.json

lint: $(VENV)/.dev lint-files ## ruff, mypy, import-linter, and each configuration file by the tool that reads it
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# What has a first line for the kernel is checked as what that names, the rest as what bash -c gets. Compose and the
# manifests: tests/deploy.
lint-files: tools
	$(BIN)/yamllint --strict -d '{rules: {key-duplicates: enable, document-start: disable}}' $$(git ls-files '*.yml' '*.yaml')
	$(BIN)/python tests/support/parse_files.py $$(git ls-files '*.toml' '*.json')
	$(BIN)/shellcheck --severity warning --exclude SC1007,SC2034 $$(git grep -lE '^#!/(usr/)?bin/(env )?(ba)?sh' -- '*.sh' .ci/run '*/shims/*')
	$(BIN)/shellcheck --severity warning --exclude SC1007,SC2034,SC2154 --shell bash $$(git grep -LE '^#!' -- '*.sh')
	$(BIN)/python tests/support/debian_tools.py promtool check rules deploy/prometheus-rules.yml
	$(BIN)/python tests/support/debian_tools.py promtool check config --syntax-only deploy/prometheus.yml
	$(BIN)/hadolint --failure-threshold warning --ignore DL3008 $$(git ls-files 'deploy/*Dockerfile')

format: $(VENV)/.dev ## Let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev redis ## Measure what the machinery costs, beside other systems (15 min; PARTS="factory codec")
	$(BIN)/python -m benchmarks $(PARTS)

bench-view: $(VENV)/.dev redis ## The viewer's goals beside Inspect View, and a run of 200 with three viewers (needs chromium-driver; 15 min)
	$(BIN)/python -m benchmarks.plugins.view $(if $(WRITE),--write)

soak: $(VENV)/.dev redis ## A million no-op trajectories, and whether anything grows with them (an hour or more)
	$(BIN)/python -m benchmarks.soak --minutes 30 --trajectories 1000000

docs: $(VENV)/.dev ## Generate what is made from code: pages of settings and commands, tables
	$(BIN)/python docs/generate_configuration.py
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_tables.py

site: $(VENV)/.dev ## Build the documentation into site/; pages open as files, python -m http.server -d site searches
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: ## Resolve requirements/*.txt anew
	@command -v $(UV) >/dev/null || { echo "no $(UV): make demo installs it, or name another one: UV=/path/to/uv" >&2; exit 1; }
	echo uv | $(COMPILE) --upgrade - -o requirements/uv.txt
	$(COMPILE) --upgrade $(RUN_EXTRAS) --group build pyproject.toml -o requirements/run.txt
	$(COMPILE) --upgrade --constraints requirements/run.txt $(RUN_EXTRAS) --extra parquet --extra datasets --extra hub --extra store \
		--extra modal --extra docker --extra nomad --extra images --extra profiles --extra renderers --extra metrics --extra otel --extra flower --group dev \
		pyproject.toml -o requirements/dev.txt
	$(COMPILE) --upgrade --constraints requirements/dev.txt $(subst --extra local,,$(RUN_EXTRAS)) --extra parquet --extra store --extra modal --extra docker --extra nomad \
		--extra profiles --extra metrics --extra otel --extra flower --group build pyproject.toml -o requirements/image.txt
	echo inspect-ai | $(COMPILE) --upgrade - -o benchmarks/peers/inspect.txt
	echo harbor | $(subst --python-version 3.11,--python-version 3.12,$(COMPILE)) --upgrade - -o benchmarks/peers/harbor.txt
	printf '%s\n' 'celery[redis]' 'dramatiq[redis]' taskiq taskiq-redis \
		| $(COMPILE) --upgrade - -o benchmarks/peers/queues.txt

lock-programs: ## Resolve the locks of the bundled agent programs anew
	cd hermes_queue/agent/programs/presets && for input in *.in; do \
		program=$${input%.in}; without=; python=$$(sed -n 's/^# Python //p' $$input); \
		[ ! -e $$program.without ] || without="--override $$program.without"; \
		$(abspath $(UV)) pip compile --quiet --universal --python-version $${python:-3.11} --generate-hashes \
			--no-emit-index-url --no-annotate --custom-compile-command "make lock-programs" --upgrade $$without \
			$$input -o $$program.lock; \
	done

lock-trainers: ## Resolve the locks of the trainers' environments anew
	for input in $(NAME:%=$(TRAINERS)/requirements/%.in); do \
		python=$$(sed -n 's/^# Python //p' $$input); \
		$(subst --python-version 3.11,--python-version $${python:-3.11},$(subst "make lock","make lock-trainers",$(COMPILE))) \
			--upgrade --no-emit-package torch --extra producer --extra worker --extra local --group build \
			pyproject.toml $(TRAINERS)/requirements/common.in $$input -o $${input%.in}.txt; \
	done

clean: ## Remove the virtual environment and everything generated (not your caches and results)
	rm -rf $(VENV) $(VENV)-modal-oldest $(VENV)-peers $(VENV)-trainers-* $(LIVE) dist build site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

tools: $(VENV)/.dev ## Compose, promtool and kubectl for the tests, from this machine or out of Debian's packages
	@for tool in compose promtool kubectl; do $(BIN)/python tests/support/debian_tools.py $$tool; done

redis: ## A second Redis version for the tests, from Debian (does nothing without root)
	@bash tests/support/install_redis.sh

# --- the virtual environment: hashes checked, no build isolation, nothing unpinned -------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "hermes-queue needs Python 3.11 or newer; this is $$($(PYTHON) -V 2>&1 || true)." \
		"Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "cannot create $(VENV); on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.run: requirements/run.txt pyproject.toml | $(BIN)/python
	bash requirements/install.sh $(BIN)/python requirements/run.txt
	@touch $@

$(VENV)-trainers-%/.made: $(TRAINERS)/requirements/%.txt $(TRAINERS)/requirements/install.sh pyproject.toml
	PYTHON=$(PYTHON) bash $(TRAINERS)/requirements/install.sh $* $(@D)
	@touch $@

# --- the servers of test-vllm and test-sglang, and the model that they serve --------------

$(LIVE)/vllm/.vllm: tests/live/vllm.txt tests/live/install_vllm.sh
	PYTHON=$(PYTHON) bash tests/live/install_vllm.sh $(LIVE)/vllm

$(LIVE)/model/.made: tests/live/tiny_model.py | $(LIVE)/vllm/.vllm $(VENV)/.dev
	$(BIN)/python -c 'import json; from hermes_queue.tools import load_tool; \
		print(json.dumps([load_tool("terminal").schema()]))' >$(LIVE)/tools.json
	$(LIVE)/vllm/bin/python tests/live/tiny_model.py $(@D) --tools $(LIVE)/tools.json
	@touch $@

# What the programs say decides what their model has to know, so they are run once beforehand.
$(LIVE)/transcripts.json: tests/live/record_programs.py hermes_queue/agent/programs/presets/programs.toml | $(VENV)/.dev
	@mkdir -p $(LIVE)
	$(BIN)/python tests/live/record_programs.py $@

$(LIVE)/program-model/.made: tests/live/program_model.py tests/live/tiny_model.py $(LIVE)/transcripts.json | $(LIVE)/vllm/.vllm
	$(LIVE)/vllm/bin/python tests/live/program_model.py $(@D) --transcripts $(LIVE)/transcripts.json
	@touch $@

# Every module that the tests import, compiled by one process: all processes of pytest start at
# once, and each would compile them for itself.
$(VENV)/.compiled: $(VENV)/.dev
	@$(BIN)/python -m pytest --collect-only --quiet tests >/dev/null || true # the tests say what is wrong
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(BIN)/python
	bash requirements/install.sh $(BIN)/python requirements/dev.txt
	@touch $(VENV)/.run $@
