#!/bin/sh
# Compiles the library for Android, for bindings/kotlin/build.gradle.kts.
# Needs the NDK (r27 or newer, ANDROID_NDK_HOME), `cargo install cargo-ndk`, and
# `rustup target add aarch64-linux-android x86_64-linux-android`.
set -eu
cd "$(dirname "$0")/../.."
out=bindings/kotlin/build/jniLibs
# A library of one kind only: beside an rlib there is no optimisation across crates.
export CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_RELEASE_PANIC=unwind
# Devices with pages of 16 KiB load nothing else.
export RUSTFLAGS="-C link-arg=-Wl,-z,max-page-size=16384"
cargo ndk --platform 26 --target arm64-v8a --target x86_64 --output-dir "$out" \
    rustc --release --package lapidary-ffi --no-default-features --features wgpu \
    --lib --crate-type cdylib
ls -l "$out"/*
