#!/usr/bin/env bash
# Builds the examples against an installed saturate, runs each, and checks that its torch-free part
# needs no LibTorch, and that FetchContent can include a checkout.
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
for example in loader_alone own_dataset own_augmentation table own_loop scaler_and_checkpointing frozen_encoder \
    ddp_in_own_loop; do
  echo "== $example"
  "./$example"
done
echo "== own_model"
./own_model "$build/own_model"
echo "== keypoints"
./keypoints "$build/keypoints"
echo "== observer"
./observer "$build/observer"
echo "== train_recipe"
./train_recipe "$prefix/share/saturate/recipes/demo.toml" "$build/run"

echo "== COMPONENTS data, without LibTorch"
SATURATE_TORCH_DIR=/nowhere cmake -S "$root/examples" -B "$build/data" -G Ninja --log-level=NOTICE \
  -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DSATURATE_COMPONENTS=data >/dev/null
cmake --build "$build/data" --target own_dataset -- --quiet
"$build/data/own_dataset"

# Building everything would take as long as the first build. So the torch-free part is built and run;
# the rest is configured, and a program is compiled against it; linking is tested above.
echo "== FetchContent"
cmake -S "$root/examples" -B "$build/fetched" -G Ninja --log-level=NOTICE \
  -DSATURATE_SOURCE="$root" -DCMAKE_UNITY_BUILD=ON >/dev/null
cmake --build "$build/fetched" -j "${JOBS:-2}" -- --quiet \
  loader_alone CMakeFiles/train_recipe.dir/Unity/unity_0_cxx.cxx.o
"$build/fetched/loader_alone"
