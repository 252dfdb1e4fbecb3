#!/usr/bin/env bash
# Builds the program and its GPU tests completely, on a machine without a GPU and without the 4.7 GB of a full
# LibTorch, and runs them on the fake CUDA runtime. Arguments go to the tests, such as --gtest_filter=Budget*.
#   tests/fake_cuda/run.sh --exec COMMAND...   runs any command so, once it is built
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$PWD/build-gpu-host

skip() { echo "gpu-host-test: skipped: $*"; exit 0; }

on_fake() {
  local fake=$build/tests/fake_cuda
  export SATURATE_FAKE_CUDA_DEVICES=${SATURATE_FAKE_CUDA_DEVICES:-2}
  LD_LIBRARY_PATH=$fake/stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    LD_PRELOAD=$fake/libfake_cuda.so:$fake/libfake_cuda_switches.so "$@"
}

# A C++ project without nvcc links the installed CUDA build, and trains.
test_installed() {
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cmake --install "$build" --prefix "$folder/prefix" >/dev/null
  cat >"$folder/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(train LANGUAGES CXX)
find_package(saturate REQUIRED)
add_executable(train $PWD/examples/train_recipe.cpp)
target_link_libraries(train PRIVATE saturate::saturate)
EOF
  cmake -S "$folder" -B "$folder/build" -G Ninja --log-level=NOTICE -DCMAKE_PREFIX_PATH="$folder/prefix" \
    -DSATURATE_FAKE_CUDA=ON -DCMAKE_CXX_COMPILER_LAUNCHER=ccache >/dev/null
  cmake --build "$folder/build" -- --quiet
  on_fake "$folder/build/train" recipes/demo.toml "$folder/run" | grep '^GPU streams'
}

if [ "${1:-}" = --exec ]; then
  shift
  on_fake "$@"
  exit
fi
[ -x /usr/local/cuda/bin/nvcc ] || command -v nvcc >/dev/null || skip "no nvcc"
make --no-print-directory build PRESET=gpu-host TARGETS="saturate_command saturate_gpu_host_tests"
missing=$(LD_LIBRARY_PATH=$build/tests/fake_cuda/stubs ldd "$build/saturate" | awk '/not found/ { print $1 }' | sort -u)
[ -z "$missing" ] || skip "this CUDA toolkit has no" $missing
on_fake "$build/tests/fake_cuda/saturate_gpu_host_tests" --gtest_brief=1 "$@"
[ $# -gt 0 ] || test_installed
# On the CPU: this build's LibTorch is the oldest, and build/saturate's the newest.
[ $# -gt 0 ] || [ ! -x build/saturate ] ||
  LD_LIBRARY_PATH=$build/tests/fake_cuda/stubs tests/same_losses_test.py build/saturate "$build/saturate" | tail -n 1
