/* Numbers as text and back, by DuckDB's rules. Nothing here depends on the locale or needs a Python object. */
#ifndef PENSTOCK_SQL_NUMBERS_H
#define PENSTOCK_SQL_NUMBERS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOUBLE_TEXT 40 /* the longest text format_double and format_json_double write */

/* Decimal digits, at most one point, an exponent: checked by the caller. Fast where the result is exact (Clinger):
 * fewer than 2^53 and a power of ten that a double holds; else the C library, which is right always and slow. */
static inline double decimal_to_double(const uint8_t *p, size_t n) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const uint8_t *start = p, *end = p + n;
    uint64_t digits = 0;
    int count = 0, scale = 0, exponent = 0, is_negative = 0, is_point = 0, exponent_negative = 0;
    if (p < end && (*p == '-' || *p == '+')) is_negative = *p++ == '-';
    for (; p < end; p++) {
        if (*p == '.') {
            is_point = 1;
        } else if (*p >= '0' && *p <= '9') {
            if (digits || *p != '0') count++;
            if (count > 18) break;
            digits = digits * 10 + (*p - '0');
            scale -= is_point;
        } else {
            break;
        }
    }
    if (count <= 18) {
        if (p < end && (*p == 'e' || *p == 'E')) {
            p++;
            if (p < end && (*p == '-' || *p == '+')) exponent_negative = *p++ == '-';
            for (; p < end && exponent < 100000; p++) exponent = exponent * 10 + (*p - '0');
        }
        scale += exponent_negative ? -exponent : exponent;
        if (digits == 0) return is_negative ? -0.0 : 0.0;
        if (digits <= (1ull << 53) && scale >= -22 && scale <= 22) {
            double value = scale < 0 ? (double)digits / powers[-scale] : (double)digits * powers[scale];
            return is_negative ? -value : value;
        }
    }
    char text[128];
    char *copy = n < sizeof text ? text : (char *)malloc(n + 1);
    double value;
    if (copy == NULL) return NAN;
    memcpy(copy, start, n);
    copy[n] = 0;
    value = strtod(copy, NULL);
    if (copy != text) free(copy);
    return value;
}

/* The decimal above "d.dde-xx" with as many digits; 0 if it would need one more. */
static inline int raise_last_digit(char *text) {
    for (char *p = strchr(text, 'e') - 1; p >= text; p--) {
        if (*p == '.') continue;
        if (*p < '9') {
            ++*p;
            return 1;
        }
        *p = '0';
    }
    return 0;
}

/* The fewest digits that read back as the same double: "d.dddde[+-]xx" taken apart. The value is finite. */
static inline int shortest_digits(double value, char *digits, int *exponent) {
    char text[40];
    int precision = fabs(value) < 2.3e-308 ? 0 : 14; /* below it fewer digits than 15 can be enough */
    for (;; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (precision >= 16 || strtod(text, NULL) == value) break;
        /* Below a power of two doubles lie closer than above: the decimal above can be the one that reads back. */
        if (raise_last_digit(text) && strtod(text, NULL) == value) break;
    }
    char *e = strchr(text, 'e'), *p = text;
    int count = 0;
    for (; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[count++] = *p;
    while (count > 1 && digits[count - 1] == '0') count--;
    *exponent = atoi(e + 1);
    return count;
}

static inline char *put_digits(char *p, const char *digits, int from, int to, int count) {
    for (int i = from; i < to; i++) *p++ = i < count ? digits[i] : '0';
    return p;
}

/* Plain notation where the exponent is in least..most, else scientific with the exponent as `form` says. */
static inline size_t lay_out_double(double value, char *out, int least, int most, const char *form) {
    char digits[40], *p = out;
    int exponent, count;
    if (signbit(value)) *p++ = '-';
    if (value == 0) {
        memcpy(p, "0.0", 3);
        return (size_t)(p + 3 - out);
    }
    count = shortest_digits(fabs(value), digits, &exponent);
    if (exponent < least || exponent > most) {
        *p++ = digits[0];
        if (count > 1) {
            *p++ = '.';
            p = put_digits(p, digits, 1, count, count);
        }
        p += sprintf(p, form, exponent);
    } else if (exponent < 0) {
        *p++ = '0', *p++ = '.';
        for (int i = -1; i > exponent; i--) *p++ = '0';
        p = put_digits(p, digits, 0, count, count);
    } else {
        p = put_digits(p, digits, 0, exponent + 1, count);
        *p++ = '.';
        p = put_digits(p, digits, exponent + 1, count > exponent + 2 ? count : exponent + 2, count);
    }
    return (size_t)(p - out);
}

/* As DuckDB casts a DOUBLE to VARCHAR (and as Python writes a float): 1.0, 1e+16, 1e-05, inf, nan. */
static inline size_t format_double(double value, char *out) {
    if (isnan(value)) return (size_t)sprintf(out, "nan");
    if (isinf(value)) return (size_t)sprintf(out, value < 0 ? "-inf" : "inf");
    return lay_out_double(value, out, -4, 15, "e%+03d");
}

/* As DuckDB writes a number of a JSON text: 100.0, 1e21, 1e-7; there is none for inf and nan. */
static inline size_t format_json_double(double value, char *out) {
    if (isnan(value) || isinf(value)) return (size_t)sprintf(out, "null");
    return lay_out_double(value, out, -6, 20, "e%d");
}

static inline size_t format_int(int64_t value, char *out) {
    char reversed[24];
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    size_t n = 0, size;
    do reversed[n++] = (char)('0' + rest % 10), rest /= 10;
    while (rest);
    if (value < 0) reversed[n++] = '-';
    for (size = n; n; n--) *out++ = reversed[n - 1];
    return size;
}

static inline int is_sql_space(uint8_t c) { return c == ' ' || (c >= 9 && c <= 13); }

/* Copies a number without the underscores between its digits; its size, -1 if it is no number: [sign] digits [. digits]
 * [e [sign] digits], where one of the two runs of digits may be empty. */
static inline long clean_number(const uint8_t *p, const uint8_t *end, uint8_t *out) {
    uint8_t *start = out;
    int has_digits = 0;
    if (p < end && (*p == '-' || *p == '+')) *out++ = *p++;
    for (int part = 0; part < 3; part++) { /* before the point, behind it, exponent */
        int run = 0;
        if (part == 1) {
            if (p == end || *p != '.') continue;
            *out++ = *p++;
        } else if (part == 2) {
            if (!has_digits) return -1;
            if (p == end || (*p != 'e' && *p != 'E')) break;
            *out++ = *p++;
            if (p < end && (*p == '-' || *p == '+')) *out++ = *p++;
        }
        for (; p < end; p++) {
            if (*p >= '0' && *p <= '9') {
                *out++ = *p, run++;
            } else if (*p != '_' || !run || p + 1 == end || p[1] < '0' || p[1] > '9') {
                break;
            }
        }
        if (part == 2 && !run) return -1;
        has_digits |= run > 0;
    }
    return p == end && has_digits ? (long)(out - start) : -1;
}

static inline int equals_word(const uint8_t *p, size_t n, const char *word) {
    for (size_t i = 0; i < n; i++)
        if (word[i] == 0 || (p[i] | 32) != (uint8_t)word[i]) return 0;
    return word[n] == 0;
}

/* VARCHAR to DOUBLE; 0 if it is none. `scratch` has room for n bytes. */
static inline int text_to_double(const uint8_t *p, size_t n, uint8_t *scratch, double *value) {
    const uint8_t *end = p + n;
    long size;
    double sign = 1;
    while (p < end && is_sql_space(*p)) p++;
    while (end > p && is_sql_space(end[-1])) end--;
    size = clean_number(p, end, scratch);
    if (size >= 0) {
        *value = decimal_to_double(scratch, (size_t)size);
        return 1;
    }
    if (p < end && (*p == '-' || *p == '+')) sign = *p++ == '-' ? -1 : 1;
    n = (size_t)(end - p);
    if (equals_word(p, n, "inf") || equals_word(p, n, "infinity")) {
        *value = sign * INFINITY;
        return 1;
    }
    if (equals_word(p, n, "nan")) {
        *value = NAN;
        return 1;
    }
    return 0;
}

/* Whole numbers in base 16 or 2 behind 0x or 0b. */
static inline int prefixed_to_int(const uint8_t *p, const uint8_t *end, int64_t *value) {
    int bits = (p[1] | 32) == 'x' ? 4 : 1;
    uint64_t number = 0;
    if (p + 2 == end) return 0;
    for (p += 2; p < end; p++) {
        int digit = *p >= '0' && *p <= '9' ? *p - '0' : (*p | 32) >= 'a' && (*p | 32) <= 'f' ? (*p | 32) - 'a' + 10 : 99;
        if (digit >= 1 << bits || number >> (63 - bits)) return 0;
        number = number << bits | (uint64_t)digit;
    }
    *value = (int64_t)number;
    return 1;
}

/* VARCHAR to BIGINT; 0 if it is none or too large. A fraction is rounded half away from zero. */
static inline int text_to_int(const uint8_t *p, size_t n, uint8_t *scratch, int64_t *value) {
    const uint8_t *end = p + n;
    uint8_t *digits = scratch, *point = NULL, *tail;
    long size, exponent = 0, whole;
    uint64_t number = 0, most;
    int is_negative;
    while (p < end && is_sql_space(*p)) p++;
    while (end > p && is_sql_space(end[-1])) end--;
    if (end - p > 2 && p[0] == '0' && ((p[1] | 32) == 'x' || (p[1] | 32) == 'b')) return prefixed_to_int(p, end, value);
    size = clean_number(p, end, scratch);
    if (size < 0) return 0;
    is_negative = size && scratch[0] == '-';
    if (scratch[0] == '-' || scratch[0] == '+') digits++;
    for (tail = digits; tail < scratch + size && (*tail | 32) != 'e'; tail++)
        if (*tail == '.') point = tail;
    if (tail < scratch + size) {
        int exponent_negative = tail[1] == '-';
        for (uint8_t *e = tail + 1 + (tail[1] == '-' || tail[1] == '+'); e < scratch + size; e++) {
            if (exponent > 3000) return 0; /* as DuckDB, even if the digits are all zero */
            exponent = exponent * 10 + (*e - '0');
        }
        if (exponent_negative) exponent = -exponent;
    }
    if (point) { /* close the gap: from here on `whole` says where the point is */
        memmove(point, point + 1, (size_t)(tail - point - 1));
        tail--;
    }
    whole = (long)((point ? point : tail) - digits) + exponent;
    most = (uint64_t)INT64_MAX + (uint64_t)is_negative;
    for (long i = 0; i < whole; i++) {
        uint64_t digit = digits + i < tail ? (uint64_t)(digits[i] - '0') : 0;
        if (digits + i >= tail && number == 0) break;
        if (number > (most - digit) / 10) return 0;
        number = number * 10 + digit;
    }
    if (whole >= 0 && digits + whole < tail && digits[whole] >= '5') {
        if (number == most) return 0;
        number++;
    }
    *value = (int64_t)(is_negative ? 0 - number : number);
    return 1;
}

/* DOUBLE to BIGINT, half to even; 0 if it does not fit. */
static inline int double_to_int(double value, int64_t *number) {
    double rounded = nearbyint(value);
    if (!(rounded >= -9223372036854775808.0 && rounded < 9223372036854775808.0)) return 0;
    *number = (int64_t)rounded;
    return 1;
}

#endif
