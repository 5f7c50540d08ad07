#!/bin/sh
# Makes LapidaryFFI.xcframework, which Package.swift names, on a Mac with Xcode:
# static libraries for iPhones, their simulator and Macs with Apple silicon.
# Needs `rustup target add aarch64-apple-ios aarch64-apple-ios-sim aarch64-apple-darwin`.
set -eu
cd "$(dirname "$0")/../.."
out=bindings/swift/LapidaryFFI.xcframework
headers=target/xcframework/headers
rm -rf "$out" "$headers"
mkdir -p "$headers"
cp bindings/swift/Sources/LapidaryFFI/LapidaryFFI.h "$headers/"
# The framework says what is linked; a `link` line would look for a shared library.
sed '/^ *link /d' bindings/swift/Sources/LapidaryFFI/module.modulemap > "$headers/module.modulemap"
export IPHONEOS_DEPLOYMENT_TARGET=16.0 MACOSX_DEPLOYMENT_TARGET=13.0
set --
for target in aarch64-apple-ios aarch64-apple-ios-sim aarch64-apple-darwin; do
    features=wgpu
    if [ "$target" = aarch64-apple-darwin ]; then features=wgpu,mlx; fi
    cargo rustc --release --package lapidary-ffi --target "$target" \
        --no-default-features --features "$features" --lib --crate-type staticlib
    set -- "$@" -library "target/$target/release/liblapidary_ffi.a" -headers "$headers"
done
xcodebuild -create-xcframework "$@" -output "$out"
