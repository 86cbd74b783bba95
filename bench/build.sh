#!/bin/sh
# Builds the load generator and the delaying proxy: bench/load/*.c -> bench/bin, or into the directory given.
set -e
cd "$(dirname "$0")"
to="${1:-bin}"
mkdir -p "$to"
for program in load delay; do
    ${CC:-cc} -O2 -g -std=gnu11 -Wall -Wextra -o "$to/$program" "load/$program.c"
done
