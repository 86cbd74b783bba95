#!/bin/sh
# Builds the load generator: bench/load/*.c -> bench/bin/load, or into the directory given.
set -e
cd "$(dirname "$0")"
to="${1:-bin}"
mkdir -p "$to"
${CC:-cc} -O2 -g -std=gnu11 -Wall -Wextra -o "$to/load" load/load.c
