#!/bin/sh
# Splits a new pebble.lap into the two packages that carry it.
set -eu
here=$(dirname "$0")
split --number=2 --numeric-suffixes=1 --suffix-length=1 "$1" "$here/pebble.lap."
for half in 1 2; do mv "$here/pebble.lap.$half" "$here/$half/"; done
