# Needs python3 (with venv), g++ and make; doctest (apt-get install doctest-dev) for the C++ tests.
# Everything else comes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
# What to install where $(VENV) has no torch yet, for example TORCH=torch==2.13.0
TORCH ?= torch>=2.11,<2.15
PYTEST_ARGS ?=

BIN := $(abspath $(VENV))/bin
INSTALL = $(BIN)/pip install -q --no-build-isolation -e
export PATH := $(BIN):$(PATH)

CPP_FILES = $(shell find csrc tests/cpp bench/cpp -name '*.h' -o -name '*.inl' -o -name '*.cpp')
CORE_SOURCES = $(shell find csrc -name '*.cpp' -not -path 'csrc/torch/*' | sort)

.PHONY: help venv build demo test test-cpp test-asan test-tsan test-py lint format bench clean

help:
	@echo "make demo       install into $(VENV), then show the backend at work"
	@echo "make build      install into $(VENV), editable; again after a change in csrc/"
	@echo "make test       C++ tests, then Python tests (PYTEST_ARGS=...)"
	@echo "make test-cpp   C++ tests; test-asan, test-tsan: the same under sanitizers"
	@echo "make test-py    Python tests"
	@echo "make lint       ruff, mypy, clang-format, clang-tidy; make format: apply the formatters"
	@echo "make bench      measure the kernels and an all-reduce against gloo"
	@echo "make clean      remove what was built ($(VENV) stays)"
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) TORCH='$(TORCH)'"

# pip is what venv makes last: without Debian's python3-venv all but pip would stay behind.
$(BIN)/pip:
	@echo "$(PYTHON) -m venv $(VENV)"
	@made=; [ -e $(VENV) ] || made=$(VENV); $(PYTHON) -m venv $(VENV) \
		|| { [ -z "$$made" ] || rm -rf "$$made"; exit 1; }

venv: $(BIN)/pip
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))' \
		|| { echo "installing $(TORCH) into $(VENV)"; $(BIN)/pip install '$(TORCH)'; }
	@$(BIN)/pip install -q 'setuptools>=77' ninja cmake

build: venv
	@echo "compiling ringcomm (a minute or two the first time)"
	$(INSTALL) .

demo: build
	$(BIN)/python -m ringcomm demo

test: test-cpp test-py

test-cpp: PRESET = release
test-asan: PRESET = asan
test-tsan: PRESET = tsan
test-cpp test-asan test-tsan: venv
	cd tests/cpp && cmake --preset $(PRESET)
	cd tests/cpp && cmake --build --preset $(PRESET)
	cd tests/cpp && ctest --preset $(PRESET)

test-py: venv
	$(INSTALL) '.[test]'
	$(BIN)/pytest $(PYTEST_ARGS)

lint: venv
	$(INSTALL) '.[dev]'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	cd tests/cpp && cmake --preset release
	printf '%s\n' $(CORE_SOURCES) | xargs -P2 -n1 $(BIN)/clang-tidy --quiet -p build/cpp-release

format: venv
	$(INSTALL) '.[dev]'
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

bench: test-cpp build
	for program in build/cpp-release/*_bench; do $$program || exit 1; done
	$(BIN)/python -m ringcomm bench

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	rm -f ringcomm/_C.*.so ringcomm/_build_info.py
