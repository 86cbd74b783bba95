// Whether an MQTT topic filter matches a topic, without a trie: for filters that stand alone.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// + and #, and a wildcard at the start does not match $-topics [MQTT-4.7.2-1]. The filter is valid.
static inline bool filter_matches(const uint8_t *f, size_t f_size, const uint8_t *t, size_t t_size) {
    const uint8_t *f_end = f + f_size, *t_end = t + t_size;
    if (f_size && t_size && t[0] == '$' && (f[0] == '+' || f[0] == '#'))
        return false;
    while (f < f_end) {
        if (*f == '#')
            return true;
        if (*f == '+') {
            f++;
            while (t < t_end && *t != '/')
                t++;
        } else {
            while (f < f_end && *f != '/' && t < t_end && *f == *t)
                f++, t++;
            if (f < f_end && *f != '/')
                return false;
        }
        // a level ends here in the filter
        if (f == f_end)
            return t == t_end;
        if (t == t_end)
            return f_end - f == 2 && f[1] == '#'; // "sport/#" matches its parent "sport" too
        if (*t != '/')
            return false;
        f++, t++;
    }
    // what remains is an empty last level of the filter
    return t == t_end;
}
