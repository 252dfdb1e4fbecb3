#!/usr/bin/env bash
# Runs every fuzzer of a build folder for a number of seconds, one on each core, with the goldens as seeds. A failing
# input stays in the build folder, and the fuzzer's last lines are printed.
#   tests/fuzz/run.sh BUILD SECONDS [RUNS [NAMES]]
# RUNS: it ends earlier after so many executions. NAMES: a pattern, such as 'image|index|unpack'; by default all run.
set -euo pipefail
build=$1 seconds=$2 runs=${3:--1} names=${4:-.*}
root=$(cd "$(dirname "$0")/../.." && pwd)

seeds=$build/seeds
mkdir -p "$seeds"
find "$root"/tests/goldens/{tar,formats,image/inputs,image/modern,image/points} -type f -exec cp {} "$seeds" \;
gunzip -kf "$seeds"/*.gz
for archive in "$root"/tests/goldens/weights/{all_kinds,protocol4,training}.pt; do  # are zip files
  python3 -c 'import sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
sys.stdout.buffer.write(archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl"))))' \
    "$archive" >"$seeds/$(basename "$archive").pkl"
done
cp "$root"/tests/goldens/weights/*legacy.pt "$root"/tests/goldens/model/*.safetensors \
  "$root"/tests/goldens/watch/metrics.jsonl "$root"/recipes/*.toml "$root"/ladders/*.toml "$seeds"

run_one() { # FUZZER
  local name
  name=$(basename "$1")
  mkdir -p "$build/corpus/$name"
  "$1" -max_total_time="$seconds" -runs="$runs" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$build/$name-" "$build/corpus/$name" "$seeds" >"$build/$name.log" 2>&1 || {
    tail -n 30 "$build/$name.log"
    return 255  # xargs starts no others
  }
  awk -F ': *' '/number_of_executed_units|new_units_added/ { sub("stat::", ""); print FILENAME ": " $1 " " $2 }' \
    "$build/$name.log"
}
export -f run_one
export build seconds runs seeds

find "$build" -maxdepth 1 -name 'fuzz_*' -type f -perm -u+x | grep -E "/fuzz_($names)$" | sort |
  xargs -P "$(nproc)" -I{} bash -c 'run_one {}'
