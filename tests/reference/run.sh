#!/bin/sh
# Trains a reference config with QUINTET in fp64 and in fp32 and compares each run with PyTorch's.
# Usage: run.sh QUINTET CONFIG_NAME [KEY=VALUE ... | --ranks N]
set -eu
quintet=$(realpath "$1")
name=$2
shift 2
here=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM

# Fewer windows than 20 steps need, so that a second epoch begins.
/usr/bin/python3 "$here/corpus.py" 4500 > "$folder/corpus.txt"
runs=
for precision in fp64 fp32; do
  run="${name}_$precision"
  if ! "$quintet" train "$here/$name.yaml" run.dir="$folder" run.name="$run" data.train="$folder/corpus.txt" \
      precision.compute="$precision" "$@" > "$folder/$run.log" 2>&1; then
    cat "$folder/$run.log"
    echo "$run: quintet failed"
    exit 1
  fi
  runs="$runs $folder/$run"
done
# shellcheck disable=SC2086 # the temporary folder's name has no spaces
/usr/bin/python3 -B "$here/reference.py" $runs
