# Two commands do everything: `make run` starts the broker, `make test` proves it. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
APT := python3-venv python3-dev build-essential
APT_TEST := mosquitto mosquitto-clients openssl redis-server redis-sentinel haproxy valgrind
APT_JAVA := maven default-jre-headless
SOURCES := setup.py $(shell find ext -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h')
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS := $(shell nproc)
WAIT := -o DPkg::Lock::Timeout=300  # another apt may be at work

.DEFAULT_GOAL := help
.PHONY: help run build test test-dist lint types format dist bench bench-check bench-micro asan fuzz conformance docs-check annotate tools-compose image-check clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: $(STAMPS)/build ## start the broker on 127.0.0.1:1883; everything it needs is installed and built first
	@exec $(BIN)/penstock serve $(ARGS)

build: $(STAMPS)/build ## virtual environment and compiled modules

test: ## everything installed, built, started and tested
	@$(MAKE) --no-print-directory -j3 $(STAMPS)/build $(STAMPS)/dev $(STAMPS)/services
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-dist: $(STAMPS)/build $(STAMPS)/dev $(STAMPS)/services ## of these only the single-file binary, wheel and sdist, built and tried out
	$(BIN)/python -m pytest tests/dist $(ARGS)

lint: $(STAMPS)/build $(STAMPS)/dev ## style of Python and Cython, types, layers
	$(BIN)/python -m pytest tests/unit/source $(ARGS)

format: $(STAMPS)/dev ## rewrite Python in the house style
	$(BIN)/ruff check --fix src tests bench docs docker
	$(BIN)/ruff format src tests bench docs docker

dist: $(STAMPS)/build $(STAMPS)/dev ## dist/penstock, a single file that needs no Python; the same unpacked, wheel and sdist
	$(BIN)/python docker/binary/build.py $(ARGS)

bench: $(STAMPS)/build $(STAMPS)/dev $(STAMPS)/services ## load against mosquitto, interleaved; saves a dated result and redraws the README's table
	$(BIN)/python bench/compare.py --save $(ARGS) && $(BIN)/python bench/report.py

bench-check: $(STAMPS)/build $(STAMPS)/dev ## fails when the hot path needs 2 % more instructions than bench/baseline.json says
	@command -v valgrind >/dev/null || { $(call apt,valgrind); }
	$(BIN)/python bench/check.py $(ARGS)

bench-micro: $(STAMPS)/build $(STAMPS)/dev ## nanoseconds of codec, trie, partitioner …, and the targets of some of them
	$(BIN)/python -m pytest bench/micro $(ARGS)

asan: $(STAMPS)/build $(STAMPS)/dev $(STAMPS)/services ## storms of take-overs and bad packets with AddressSanitizer and debug checks, in build/asan
	$(BIN)/python -m tests.support.machine.sanitized $(ARGS)

fuzz: $(STAMPS)/build $(STAMPS)/dev ## the nightly fuzz run: a million executions of the decoder
	$(BIN)/python tests/fuzz/fuzz_codec.py --runs 1000000

conformance: $(STAMPS)/dev ## write docs/conformance.md from the tags in code and tests
	$(BIN)/python docs/conformance/generate.py

annotate: $(STAMPS)/venv ## Cython's annotated HTML of the compiled modules, in build/cython
	PENSTOCK_ANNOTATE=1 $(BIN)/python setup.py -q build_ext --inplace --force
	@find build/cython -name '*.html'

tools-compose: ## a newer Compose v2 than Debian's, from its sources (Go 1.24, some minutes, once), for the tests of the compose files
	$(PYTHON) -m tests.support.machine.compose_plugin

image-check: $(STAMPS)/build $(STAMPS)/dev ## build the image without docker, look into it and run it (root; some minutes); ARGS=spark: that image too
	@{ command -v buildah && command -v debootstrap; } >/dev/null || { $(call apt,buildah debootstrap); }
	$(BIN)/python -m tests.support.machine.image_check $(ARGS)

clean: ## remove everything that was built or installed here
	rm -rf $(VENV) $(STAMPS) build dist bench/bin
	find src ext -name '*.so' -delete -o -name '*.c' -delete -o -name __pycache__ -prune -exec rm -rf {} +

# ---- how it comes about ----

$(STAMPS)/venv: constraints.txt
	@mkdir -p $(STAMPS)
	@echo "Penstock: preparing a virtual environment in $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { $(call apt,$(APT)); $(PYTHON) -m venv $(VENV); }
	@command -v cc >/dev/null || { $(call apt,$(APT)); }
	@$(PIP) --upgrade pip setuptools wheel Cython
	@touch $@

$(STAMPS)/runtime: $(STAMPS)/venv pyproject.toml
	@echo "Penstock: installing what it runs on"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' > $(STAMPS)/runtime.txt
	@$(PIP) -r $(STAMPS)/runtime.txt
	@touch $@

$(STAMPS)/build: $(STAMPS)/runtime $(SOURCES)
	@echo "Penstock: compiling the hot path (about a minute, once)"
	@# pip would compile all of it once more, in a place of its own and one after the other
	@test -x $(BIN)/penstock || PENSTOCK_MODULES=none $(PIP) --no-deps --no-build-isolation --editable . >$(STAMPS)/build.log 2>&1 || { cat $(STAMPS)/build.log; exit 1; }
	@PENSTOCK_PROGRESS=3 $(BIN)/python setup.py -q build_ext --inplace -j $(JOBS) 3>&1 >>$(STAMPS)/build.log 2>&1 || { cat $(STAMPS)/build.log; exit 1; }
	@touch $@

$(STAMPS)/dev: $(STAMPS)/runtime
	@echo "Penstock: installing what the tests need"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"], sep="\n")' > $(STAMPS)/dev.txt
	@$(PIP) --no-compile -r $(STAMPS)/dev.txt  # what is imported is compiled then; most of it never is
	@touch $@

$(STAMPS)/services: | $(STAMPS)/venv  # behind it: both may need apt, which runs once at a time
	@mkdir -p $(STAMPS)
	@{ command -v mvn && command -v java; } >/dev/null || { $(call apt,$(APT_JAVA)); }
	@command -v mosquitto_sub >/dev/null && command -v openssl >/dev/null && command -v redis-server >/dev/null && command -v redis-sentinel >/dev/null && { command -v mosquitto >/dev/null || test -x /usr/sbin/mosquitto; } && { command -v haproxy >/dev/null || test -x /usr/sbin/haproxy; } && command -v valgrind >/dev/null || { $(call apt,$(APT_TEST)); }
	@{ docker compose version || docker-compose version; } >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install $(WAIT) -y -qq --no-install-recommends docker-compose; } >/dev/null 2>&1 || echo "Penstock: docker compose is not available, the tests of its files are skipped"
	@$(BIN)/python -m tests.support.machine.compose_plugin debian >/dev/null 2>&1 || echo "Penstock: Compose v2 is not available, the tests with it are skipped (make tools-compose makes it)"
	@command -v promtool >/dev/null || test -x $(BIN)/promtool || { $(promtool); } >/dev/null 2>&1 || echo "Penstock: promtool is not available, the tests of the alerts with it are skipped"
	@touch $@

# The one file of Debian's package: installed as a whole it would start a server.
define promtool
there=$$(mktemp -d) && chmod 755 $$there && cd $$there && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } \
&& dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool > promtool && chmod +x promtool && mv promtool $(CURDIR)/$(BIN) && rm -r $$there
endef

# Installs Debian packages as root; says what to do where that is not possible.
define apt
echo "Penstock: installing $(1)"; \
if [ "$$(id -u)" = 0 ]; then apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install $(WAIT) -y -qq --no-install-recommends $(1) >/dev/null; \
else echo "Please install these packages and try again: sudo apt-get install $(1)"; exit 1; fi
endef
