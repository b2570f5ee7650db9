# Needs only make and Python 3.11 or newer; everything else goes into .venv.

# The first Python here that is new enough, unless PYTHON names one.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Stamps: what is installed in the environment, as of which pyproject.toml.
CORE := $(VENV)/.installed
DEV  := $(VENV)/.installed-dev
JAVA := $(VENV)/.installed-java

PROTO_VENV := .venv-proto
# The generator has its own environment: its protobuf need not be the one that the broker runs on.
PROTO_TOOLS := grpcio-tools==1.76.0

# The examples' generators, each run in the folder of its example; what they write is ignored by git.
PROTOC     := $(CURDIR)/$(PROTO_VENV)/bin/python -m grpc_tools.protoc
PYTHON_OUT := --python_out=. --pyi_out=. --grpc_python_out=.
GO_TOOLS   := mkdir -p pb && go build -o build/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
GO_OUT     := --plugin=build/protoc-gen-go --go_out=pb --go_opt=paths=source_relative \
	--plugin=build/protoc-gen-go-grpc --go-grpc_out=pb --go-grpc_opt=paths=source_relative

COMPOSE ?= docker compose

# The clients of the brokers that mq is compared with have an environment of their own, too.
COMPARE := .venv-compare
COMPARE_CLIENTS := confluent-kafka nats-py pika psutil 'redis[hiredis]'

# Extra arguments: make test ARGS='-k torn -x'
ARGS ?=
# Of `make torture` and `make soak`
SCALE ?= 1
MINUTES ?= 60

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install run test test-fast lint fmt proto examples example-python example-go example-node example-java example-rust bench-wal bench bench-wire bench-features bench-spark compare compare-install demo torture soak golden docs dist build up down logs ps clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(DEV) ## make .venv with everything needed to work on mq

run: $(CORE) ## start the broker on 127.0.0.1:50051, its log in ./data
	$(BIN)/mq serve $(ARGS)

test: $(DEV) $(JAVA) ## run all tests
	$(BIN)/python -m pytest $(ARGS)

test-fast: $(DEV) ## run the tests that need no JVM and end in seconds
	$(BIN)/python -m pytest -m 'not (spark or slow or toolchain or torture)' $(ARGS)

lint: $(DEV) ## check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict

fmt: $(DEV) ## format the code, fix what can be fixed
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

proto: $(PROTO_VENV)/.installed ## generate mq/pb and wal/pb from proto/*.proto
	$(PROTO_VENV)/bin/python proto/generate.py

examples: ## build the examples of every language whose tools are here
	@have='example-python'; missing=''; \
	for each in go:go node:npm java:mvn rust:cargo; do \
		if command -v $${each#*:} >/dev/null; then have="$$have example-$${each%:*}"; else missing="$$missing $$each"; fi; \
	done; \
	$(MAKE) --no-print-directory $$have && \
	for each in $$missing; do echo "SKIPPED examples/$${each%:*}: there is no $${each#*:} here" >&2; done

example-python: $(PROTO_VENV)/.installed ## generate the stubs of examples/python
	cd examples/python && $(PROTOC) -Ipb=../../proto $(PYTHON_OUT) ../../proto/mq.proto
	cd examples/compat/python && $(PROTOC) -Ipb=.. $(PYTHON_OUT) ../mq.proto

example-go: $(PROTO_VENV)/.installed ## build examples/go
	cd examples/go && $(GO_TOOLS) && $(PROTOC) -I../../proto $(GO_OUT) ../../proto/mq.proto && go build -o build/ ./...
	cd examples/compat/go && $(GO_TOOLS) && $(PROTOC) -I.. $(GO_OUT) ../mq.proto && go build -o build/ ./...

example-node: examples/node/node_modules/.package-lock.json ## build examples/node
	cd examples/node && npm run --silent build

examples/node/node_modules/.package-lock.json: examples/node/package-lock.json
	cd examples/node && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

example-java: ## build examples/java
	cd examples/java && mvn --quiet --batch-mode package

example-rust: ## build examples/rust
	cd examples/rust && cargo build --quiet --locked

bench-wal: $(CORE) ## measure the log alone
	$(BIN)/python benchmarks/log.py $(ARGS)

bench: $(CORE) ## measure the broker through both doors, and its features
	$(BIN)/python benchmarks/broker.py $(ARGS); status=$$?; $(BIN)/python benchmarks/wire.py || status=1; \
	$(BIN)/python benchmarks/features.py && exit $$status

bench-features: $(CORE) ## measure delays, ordered groups, acks, idempotence, retention
	$(BIN)/python benchmarks/features.py $(ARGS)

bench-wire: $(CORE) ## measure the wire beside gRPC
	$(BIN)/python benchmarks/wire.py $(ARGS)

bench-spark: $(DEV) $(JAVA) ## measure the Spark jobs on generated segments
	$(BIN)/python benchmarks/spark.py $(ARGS)

compare: $(COMPARE)/.installed ## mq beside other brokers, into docs/benchmarks.md (those that are installed)
	PYTHONPATH=benchmarks $(COMPARE)/bin/python -m compare $(ARGS)

compare-install: $(COMPARE)/.installed ## bring NATS, Redis, RabbitMQ and Kafka for `make compare`
	PYTHONPATH=benchmarks $(COMPARE)/bin/python -m compare.install

demo: $(CORE) ## record the picture of the README from a real run
	$(BIN)/python docs/demo.py

# The large sizes times SCALE; what the tests showed goes into docs/reliability.md, also where one of them failed.
torture: SHOWN := build/torture.jsonl
torture: $(DEV) ## crash, corrupt and abuse a broker for hours, into docs/reliability.md: make torture SCALE=0.1
	@mkdir -p build && rm -f $(SHOWN)
	MQ_TORTURE=$(SCALE) MQ_RECORD=$(SHOWN) MQ_COMMAND="make torture SCALE=$(SCALE) ARGS='-k {test}'" \
	$(BIN)/python -m pytest -m 'torture or shows' --timeout=0 $(ARGS); \
	status=$$?; $(BIN)/python tests/torture.py $(SHOWN) && exit $$status

soak: SHOWN := build/soak.jsonl
soak: $(DEV) ## load a broker at 70 % of its maximum, into docs/reliability.md: make soak MINUTES=60
	@mkdir -p build && rm -f $(SHOWN)
	MQ_SOAK_MINUTES=$(MINUTES) MQ_RECORD=$(SHOWN) MQ_COMMAND="make soak MINUTES=$(MINUTES)" \
	$(BIN)/python -m pytest tests/test_soak.py --timeout=0 $(ARGS); \
	status=$$?; $(BIN)/python tests/torture.py $(SHOWN) && exit $$status

golden: $(DEV) ## write the golden files of a new log format: make golden VERSION=2
	$(BIN)/python tests/test_wal_golden.py tests/golden/wal-v$(VERSION)

docs: $(DEV) ## write docs/reference from the code, build the site into ./site
	$(BIN)/python docs/site/generate.py
	$(BIN)/python docs/site/pages.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

dist: $(DEV) ## build the wheel and the sdist into ./dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

build: ## build the container images of docker-compose.yaml
	$(COMPOSE) --profile spark build $(ARGS)

up: ## start the broker and the example in containers
	$(COMPOSE) up --detach --build $(ARGS)

down: ## stop the containers; the broker's volume stays
	$(COMPOSE) --profile spark down $(ARGS)

logs: ## follow the containers' output
	$(COMPOSE) logs --follow $(ARGS)

ps: ## list the containers
	$(COMPOSE) ps $(ARGS)

clean: ## remove environments, caches and builds (never ./data)
	rm -rf $(VENV) $(PROTO_VENV) $(COMPARE) .peers build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find examples -type d '(' -name pb -o -name build -o -name target -o -name node_modules ')' -prune -exec rm -rf {} +

$(CORE): pyproject.toml | $(BIN)/python
	$(PIP) install -e .
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[dev]'
	@touch $(CORE) $@

# The tests run Spark on the Java of the `java` extra. Where that has no build for this machine, they do with
# the Java that is installed; where there is none either, wal.spark.java says what to do.
$(JAVA): pyproject.toml $(DEV)
	$(PIP) install -e '.[java]' || $(BIN)/python -m wal.spark.java
	@touch $@

# Here mq is installed as users have it, and anew where it was changed: an editable install starts later.
$(COMPARE)/.installed: Makefile pyproject.toml $(wildcard mq/*.py mq/*/*.py mq/*/*/*.py wal/*.py wal/*/*.py wal/*/*/*.py) | $(COMPARE)/bin/python
	$(COMPARE)/bin/python -m pip --disable-pip-version-check --quiet install . $(COMPARE_CLIENTS)
	$(COMPARE)/bin/python -m pip --disable-pip-version-check --quiet install --force-reinstall --no-deps .
	@rm -rf build/lib build/bdist.*
	@touch $@

$(PROTO_VENV)/.installed: Makefile | $(PROTO_VENV)/bin/python
	$(PROTO_VENV)/bin/python -m pip --disable-pip-version-check --quiet install $(PROTO_TOOLS)
	@touch $@

# Some distributions ship Python without ensurepip: then an existing pip fills the environment from outside.
$(BIN)/python $(PROTO_VENV)/bin/python $(COMPARE)/bin/python:
	@test -n '$(PYTHON)' || { echo 'mq needs Python 3.11 or newer: install one, or name it: make PYTHON=/path/to/python' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo 'mq needs Python 3.11 or newer; $(PYTHON) is' "$$($(PYTHON) -V 2>&1)" >&2; exit 1; }
	@venv=$(patsubst %/bin/python,%,$@); \
	$(PYTHON) -m venv $$venv >/dev/null 2>&1 \
	|| { $(PYTHON) -m venv --clear --without-pip $$venv && $(PYTHON) -m pip --python $@ install --quiet pip; } >/dev/null 2>&1 \
	|| { rm -rf $$venv; \
	     echo 'mq: $(PYTHON) can make no virtual environment: it has neither ensurepip nor pip.' >&2; \
	     echo '    Install them (Debian, Ubuntu: apt install python3-venv) or name another: make PYTHON=/path/to/python' >&2; \
	     exit 1; }
