#!/bin/sh
# Builds the delaying proxy of app_bench.py: bench/delay.c -> bench/bin, or into the directory given.
set -e
cd "$(dirname "$0")"
to="${1:-bin}"
mkdir -p "$to"
${CC:-cc} -O2 -g -std=gnu11 -Wall -Wextra -o "$to/delay" delay.c
