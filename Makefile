# make demo: set up and run the main job on the bundled policy. make test: lint, types, tests, doctests, the wheel.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# The tests that `make test` takes; `make test-all` takes the slow ones too.
PICK := -m "not slow"

.PHONY: demo test test-all lint typed doctests wheel clean

# Python keeps the modules that it compiles, also where the environment forbids it, as this empty value undoes that: else each of the
# some hundred processes that the tests start compiles torch anew, which takes longer than what most of them test.
export PYTHONDONTWRITEBYTECODE =

# A stamp newer than what decides the environment means it is up to date. pip compiles nothing, as compiling all modules takes minutes.
# Those that a training imports are compiled here, so that the first two processes of the tests do not both do it: torch's own on the core
# that is idle while pip installs the rest.
$(VENV)/ready: setup.cfg constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -c "import torch._dynamo" 2>/dev/null & \
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[test,dev]" && wait
	$(BIN)/python -c "import torch._dynamo, jsonargparse, discrete_grpo.recipes.train, discrete_grpo.training.trainer"
	touch $(VENV)/ready

demo: $(VENV)/ready
	rm -rf runs/demo
	$(BIN)/discrete-grpo train demo
	@echo "Open runs/demo/report.html in a browser."

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Files whose annotations hold the shapes of tensors: they run with every annotation checked by jaxtyping and beartype, and once only but
# for test_categorical.py, where checks of the package itself are tested that the annotations forestall.
TYPED := tests/core/test_categorical.py tests/domains/test_graphs.py tests/diffusion/test_kernels.py tests/policies/test_graph_policy.py tests/policies/test_graph_policy_drawing.py tests/policies/test_graph_policy_fixed.py tests/policies/test_graph_policy_training.py tests/policies/test_fields.py tests/models/test_graph_transformer.py tests/policies/test_graph_conditions.py tests/domains/test_tokenizer.py tests/models/test_gpt.py tests/policies/test_tokens.py tests/policies/test_masked_text.py tests/policies/test_masked_text_training.py tests/models/test_vq.py

doctests: export OMP_NUM_THREADS = 1
doctests: $(VENV)/ready
	$(BIN)/python -m pytest -q -p no:cacheprovider --doctest-modules discrete_grpo models datasets --ignore=discrete_grpo/models --ignore=discrete_grpo/datasets

typed: export OMP_NUM_THREADS = 1
typed: $(VENV)/ready
	$(BIN)/python -m pytest -q -p no:cacheprovider --jaxtyping-packages=discrete_grpo,beartype.beartype $(TYPED)

wheel: export OMP_NUM_THREADS = 1
wheel: $(VENV)/ready
	bash tests/wheel.sh $(abspath $(BIN)/python)

test: export OMP_NUM_THREADS = 1
test: $(VENV)/ready
	$(MAKE) -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync) lint typed doctests wheel  # two at a time, each on one core; typed takes as long as the others together
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=25 $(PICK) $(addprefix --ignore=,$(filter-out tests/core/test_categorical.py,$(TYPED)))

test-all: PICK :=
test-all: test

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
