#!/usr/bin/env bash
# Builds the examples against an installed saturate, runs each, and checks that a checkout can be
# taken in by FetchContent.
#   examples/run.sh PREFIX
set -euo pipefail
prefix=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

cmake -S "$root/examples" -B "$build/installed" -G Ninja --log-level=NOTICE \
  -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache >/dev/null
cmake --build "$build/installed" -j "${JOBS:-2}" -- --quiet
cd "$build/installed"
for example in loader_alone own_dataset own_augmentation own_loop scaler_and_checkpointing frozen_encoder \
    ddp_in_own_loop; do
  echo "== $example"
  "./$example"
done
echo "== own_model"
./own_model "$build/own_model"
echo "== train_recipe"
./train_recipe "$prefix/share/saturate/recipes/demo.toml" "$build/run"

# The torch-free part is enough to show that the checkout can be a part of another project.
echo "== FetchContent"
cmake -S "$root/examples" -B "$build/fetched" -G Ninja --log-level=NOTICE \
  -DSATURATE_SOURCE="$root" >/dev/null
cmake --build "$build/fetched" -j "${JOBS:-2}" --target loader_alone -- --quiet
"$build/fetched/loader_alone"
