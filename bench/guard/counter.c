// Marks for callgrind: instructions are counted between begin and end, and written down under a name.
#include <valgrind/callgrind.h>

void count_begin(void) {
    CALLGRIND_ZERO_STATS;
    CALLGRIND_START_INSTRUMENTATION;
}

void count_end(const char *name) {
    CALLGRIND_STOP_INSTRUMENTATION;
    CALLGRIND_DUMP_STATS_AT(name);
}

int count_is_possible(void) { return RUNNING_ON_VALGRIND > 0; }
