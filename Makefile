# Every target works on a fresh Debian machine with Go: what is missing is installed
# first (see setup). Targets with ## are listed by `make help`.

GO        ?= go
BIN       := bin/kvcluster
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS   := -s -w -X main.version=$(VERSION)
# Packages with goroutines or threads; the others gain nothing from the race detector.
RACE_PKGS := ./cluster/... ./indexer/... ./transport/... ./router/... ./shard/... ./chaos/sim
SOAK      ?= 5m
SCHEDULES ?= 20000
SEED      ?= 1
FUZZTIME  ?= 5s
TRACES    ?= ../shared/traces

.DEFAULT_GOAL := help
.PHONY: help setup build install run test test-unit test-race fuzz smoke conformance parity soak survive oplist protocol sim bench verify fix clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install system packages that are missing (libzmq3-dev, pkg-config, a C compiler)
	@deploy/setup.sh

build: setup ## build bin/kvcluster
	@echo "building $(BIN) (the first time fetches modules and takes a few minutes)"
	@$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/kvcluster

PREFIX ?= /usr/local
install: build ## copy bin/kvcluster to PREFIX/bin (default /usr/local)
	install -D $(BIN) $(DESTDIR)$(PREFIX)/bin/kvcluster

run: build ## a running cluster of three nodes with eight mock workers feeding it, watched live (Ctrl-C ends it)
	@$(BIN) demo

test: setup verify test-unit test-race fuzz smoke ## everything CI runs: lint, unit, race, short fuzz, smoke
	@echo "make test: all passed"

test-unit: setup ## unit, property, differential and end-to-end tests, and the index again in the audited build
	$(GO) test -timeout 30m ./...
	$(GO) test -short -tags invariants ./indexer/... ./chaos/differential

test-race: setup ## the concurrent packages under the race detector
	$(GO) test -race -short -timeout 30m $(RACE_PKGS)

fuzz: setup ## every fuzz target for FUZZTIME each
	@deploy/fuzz.sh $(FUZZTIME)

smoke: build ## the built binary as a user starts it: demo, queries, clean end
	@deploy/smoke.sh $(BIN)

conformance: build ## publish vectors and a replay with the engines' own Python libraries, check the answers
	@chaos/conformance/run.sh $(BIN)

parity: setup ## the whole conversation trace through real sockets in every format, every answer compared (half an hour)
	$(GO) test ./cmd/internal/e2e -run '^TestParity' -parity.requests=-1 -timeout 3h -v

soak: setup ## answers under traffic, restarts and loss for SOAK, each within what is justified
	$(GO) test ./cmd/internal/e2e -run '^TestPromise2NeverMore$$' -soak=$(SOAK) -timeout 24h -v

NODES     ?= 5
survive: setup ## NODES node processes under queries and traffic: join, leave, kill -9 of a reader, an owner, the leader, and what each costs
	$(GO) test ./cmd/internal/e2e -run '^TestClusterSurvives$$' -survive.nodes=$(NODES) -timeout 1h -v

oplist: setup ## the op lists with known answers through sockets: a node alone, and every node of a cluster of five (a quarter of an hour)
	$(GO) test ./cmd/internal/e2e -run '^TestOpList$$' -oplist.full -timeout 2h -v

protocol: setup ## the models of the protocol at their larger bounds (minutes, some GB)
	$(GO) test ./chaos/protocol -deep -timeout 2h -v -run Deep

sim: setup ## clusters in virtual time under random faults, SCHEDULES of them from seed SEED on; a failure says how to run it again
	$(GO) test ./chaos/sim -run '^(TestSchedules|TestChurn)$$' -sim.schedules=$(SCHEDULES) -sim.first=$(SEED) -timeout 24h -v

bench: build ## the index on known work: op list, replay windows, shapes; JSON and chart in bench-out/
	@mkdir -p bench-out
	$(BIN) bench index --traces $(TRACES) --out bench-out

verify: setup ## checks that change nothing: vet, format, staticcheck where it can be had, tidy, import direction
	@deploy/verify.sh

fix: ## apply formatting and go fix
	gofmt -w $$(git ls-files '*.go')
	$(GO) fix ./...

clean: ## remove what was built
	rm -rf bin bench-out
