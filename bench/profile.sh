#!/bin/sh
# Profiles a broker of its own under one scenario of compare.py.
#
#   bench/profile.sh perf p2p-q1 5         perf record with call graphs, then the report    -> build/profile/perf.data
#   bench/profile.sh stat p2p-q1 5         perf stat: cycles and instructions, where the machine has counters
#   bench/profile.sh callgrind p2p-q1 5    exact instruction counts under valgrind (about 50x slower)
#   bench/profile.sh python p2p-q1 5       perf with Python frames (CPython 3.12 and later: -X perf)
#
# C frames of the compiled modules need symbols: build with CFLAGS="-O2 -g -fno-omit-frame-pointer".
# PYTHON chooses the interpreter, BROKER another command ({port} and {dir} are filled in).
set -eu
cd "$(dirname "$0")/.."
tool="${1:-}" scenario="${2:-p2p-q1}" secs="${3:-5}"
case "$tool" in perf | stat | callgrind | python) ;; *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
python="${PYTHON:-.venv/bin/python}"
out=build/profile
mkdir -p "$out"
dir="$(mktemp -d)"
port="$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
options="$("$python" bench/compare.py --options "$scenario")"

flags="" wrapper=""
[ "$tool" = python ] && flags="-X perf"
[ "$tool" = callgrind ] && wrapper="valgrind --tool=callgrind --callgrind-out-file=$out/callgrind.out --instr-atstart=no"
default="$python $flags -m penstock serve --listen 127.0.0.1:{port} --admin= --data-dir {dir}/data"
command="$(printf %s "${BROKER:-$default}" | sed "s#{port}#$port#g; s#{dir}#$dir#g")"

broker=""
stop() {
    [ -n "$broker" ] && kill "$broker" 2>/dev/null && wait "$broker" 2>/dev/null
    rm -rf "$dir"
}
trap stop EXIT
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PENSTOCK_CONFIG="$dir/penstock.toml"
"$python" -c 'from penstock_bench.brokers import PENSTOCK_TOML; print(PENSTOCK_TOML)' >"$dir/penstock.toml"
# The words of the command are meant to be split.
# shellcheck disable=SC2086
$wrapper $command >"$out/broker.log" 2>&1 &
broker=$!
tries=0
until "$python" -m penstock_bench.load --scenario idle --n 1 --secs 0.01 --port "$port" >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ] || ! kill -0 "$broker" 2>/dev/null; then
        echo "the broker did not start:" >&2
        cat "$out/broker.log" >&2
        exit 1
    fi
    sleep 0.2
done

# shellcheck disable=SC2086
load() { "$python" -m penstock_bench.load --port "$port" --pids "$broker" $options --secs "$secs"; }
case "$tool" in
perf | python)
    load >"$out/load.json" &
    sleep 1.2
    perf record -q -F 999 -g --call-graph "${CALL_GRAPH:-fp}" -p "$broker" -o "$out/perf.data" -- sleep "$secs"
    wait "$!" || true
    perf report -i "$out/perf.data" --stdio --no-children -g none --percent-limit 0.5
    ;;
stat)
    load >"$out/load.json" &
    sleep 1.2
    perf stat -p "$broker" -e task-clock,context-switches,page-faults,cycles,instructions,branch-misses -- sleep "$secs"
    wait "$!" || true
    ;;
callgrind)
    callgrind_control --instr=on "$broker" >/dev/null
    load >"$out/load.json"
    callgrind_control --instr=off "$broker" >/dev/null
    kill "$broker"
    wait "$broker" || true
    broker=""
    callgrind_annotate --auto=no "$out"/callgrind.out* | head -60
    ;;
esac
cat "$out/load.json"
