#!/bin/sh
# Runs everything of the MLX backend that needs a Mac with Apple silicon: installs MLX and mlx-c below
# target/mlx, runs the conformance suite and pebble's answers on it, and shows what `auto` picks.
set -eu
cd "$(dirname "$0")/../.."
eval "export $(cargo xtask mlx)"
cargo test -p lapidary-conformance --test mlx
cargo test -p lapidary-conformance --test pebble
cargo run --release -- doctor
cargo run --release -- run --backend mlx "Tell me a story."
