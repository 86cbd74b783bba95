/* TIMESTAMP: nanoseconds since 1970-01-01 00:00 UTC in the Gregorian calendar, as text, in parts and back. */
#ifndef PENSTOCK_SQL_TIME_H
#define PENSTOCK_SQL_TIME_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define NS_PER_SECOND 1000000000LL
#define NS_PER_DAY (86400 * NS_PER_SECOND)
#define TIME_TEXT 40 /* the longest text format_time writes */

typedef struct {
    int64_t year;
    int month, day;      /* from 1 */
    int64_t days;        /* since the epoch */
    int64_t ns;          /* within the day */
} CivilTime;

/* The years around a count of days and back: H. Hinnant's chrono algorithms, in eras of 400 years from 1 March. */
static inline int64_t days_from_civil(int64_t y, int m, int d) {
    y -= m <= 2;
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    int64_t yoe = y - era * 400, doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

static inline CivilTime civil_from_ns(int64_t ns) {
    CivilTime t;
    t.days = floor_div(ns, NS_PER_DAY);
    t.ns = ns - t.days * NS_PER_DAY;
    int64_t z = t.days + 719468, era = floor_div(z, 146097);
    int64_t doe = z - era * 146097, yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    t.day = (int)(doy - (153 * mp + 2) / 5 + 1);
    t.month = (int)(mp < 10 ? mp + 3 : mp - 9);
    t.year = yoe + era * 400 + (t.month <= 2);
    return t;
}

static inline int days_in_month(int64_t year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return days[month - 1] + (month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
}

/* 0 if it does not fit into 64 bits. */
static inline int ns_from_days(int64_t days, int64_t ns, int64_t *out) {
    __int128 wide = (__int128)days * NS_PER_DAY + ns;
    if (wide > INT64_MAX || wide < INT64_MIN) return 0;
    *out = (int64_t)wide;
    return 1;
}

/* "2020-01-31 10:00:00.123456789", the fraction without zeros at its end; with `iso` a T between and a Z behind, and a
 * fraction of 0, 3, 6 or 9 digits. */
static inline size_t format_time(int64_t ns, char *out, int iso) {
    CivilTime t = civil_from_ns(ns);
    int64_t second = t.ns / NS_PER_SECOND, fraction = t.ns % NS_PER_SECOND;
    int n = sprintf(out, "%04lld-%02d-%02d%c%02d:%02d:%02d", (long long)t.year, t.month, t.day, iso ? 'T' : ' ',
                    (int)(second / 3600), (int)(second / 60 % 60), (int)(second % 60));
    if (fraction) {
        n += sprintf(out + n, ".%09lld", (long long)fraction);
        if (iso) {
            while (out[n - 1] == '0' && out[n - 2] == '0' && out[n - 3] == '0') n -= 3;
        } else {
            while (out[n - 1] == '0') n--;
        }
    }
    if (iso) out[n++] = 'Z';
    return (size_t)n;
}

static inline const uint8_t *take_digits(const uint8_t *p, const uint8_t *end, int least, int most, int *value) {
    int count = 0;
    *value = 0;
    for (; p < end && count < most && *p >= '0' && *p <= '9'; p++, count++) *value = *value * 10 + (*p - '0');
    return count < least ? NULL : p;
}

static inline int is_time_space(uint8_t c) { return c == ' ' || (c >= 9 && c <= 13); }

/* "+02", "+02:30", "+0230", "-02:30:15": nanoseconds that are to be taken off. */
static inline const uint8_t *take_zone(const uint8_t *p, const uint8_t *end, int64_t *ns) {
    int sign = *p++ == '-' ? -1 : 1, part[3] = {0, 0, 0};
    p = take_digits(p, end, 2, 2, &part[0]);
    for (int i = 1; p && i < 3 && p < end; i++) {
        if (*p == ':') {
            p = take_digits(p + 1, end, 2, 2, &part[i]);
        } else if (*p >= '0' && *p <= '9' && i == 1) {
            p = take_digits(p, end, 2, 2, &part[i]);
        } else {
            break;
        }
    }
    if (p == NULL || part[0] > 23 || part[1] > 59 || part[2] > 59) return NULL;
    *ns = sign * (part[0] * 3600LL + part[1] * 60 + part[2]) * NS_PER_SECOND;
    return p;
}

/* Behind the date: [T or spaces] HH:MM[:SS[.digits]] [Z | offset | UTC]; NULL if it is something else. */
static inline const uint8_t *take_clock(const uint8_t *p, const uint8_t *end, int64_t *ns) {
    int hour, minute, second = 0;
    int64_t fraction = 0, unit = 100000000, zone = 0;
    if (*p == 'T') {
        p++;
    } else if (is_time_space(*p)) {
        while (p < end && is_time_space(*p)) p++;
    } else {
        return NULL;
    }
    p = take_digits(p, end, 1, 2, &hour);
    if (p == NULL || p == end || *p != ':') return NULL;
    p = take_digits(p + 1, end, 1, 2, &minute);
    if (p && p < end && *p == ':') {
        p = take_digits(p + 1, end, 1, 2, &second);
        if (p && p < end && *p == '.')
            for (p++; p < end && *p >= '0' && *p <= '9'; p++, unit /= 10) fraction += unit * (*p - '0');
    }
    if (p == NULL || minute > 59 || second > 59) return NULL;
    if (hour > 23 && (hour > 24 || minute || second || fraction)) return NULL;
    *ns = ((int64_t)hour * 3600 + minute * 60 + second) * NS_PER_SECOND + fraction;
    if (p < end && *p == 'Z') {
        p++;
    } else {
        const uint8_t *q = p;
        while (q < end && is_time_space(*q)) q++;
        if (q < end && (*q == '+' || *q == '-')) {
            p = take_zone(q, end, &zone);
            if (p == NULL) return NULL;
            *ns -= zone;
        } else if (end - q >= 3 && (q[0] | 32) == 'u' && (q[1] | 32) == 't' && (q[2] | 32) == 'c') {
            p = q + 3;
        } else if (q < end && *q == 'Z') {
            p = q + 1;
        }
    }
    return p;
}

/* VARCHAR to TIMESTAMP; 0 if it is none or does not fit into 64 bits. */
static inline int text_to_time(const uint8_t *p, size_t n, int64_t *out) {
    const uint8_t *end = p + n;
    int year, month, day;
    int64_t ns = 0;
    uint8_t separator;
    while (p < end && is_time_space(*p)) p++;
    if (end - p == 5 && (p[0] | 32) == 'e' && (p[1] | 32) == 'p' && (p[2] | 32) == 'o' && (p[3] | 32) == 'c' &&
        (p[4] | 32) == 'h') {
        *out = 0;
        return 1;
    }
    p = take_digits(p, end, 4, 4, &year);
    if (p == NULL || p == end || (*p != '-' && *p != '/' && *p != ' ' && *p != '\\')) return 0;
    separator = *p;
    p = take_digits(p + 1, end, 1, 2, &month);
    if (p == NULL || p == end || *p != separator) return 0;
    p = take_digits(p + 1, end, 1, 2, &day);
    if (p == NULL || month < 1 || month > 12 || day < 1 || day > days_in_month(year, month)) return 0;
    if (p < end) {
        p = take_clock(p, end, &ns);
        if (p == NULL) return 0;
        while (p < end && is_time_space(*p)) p++;
        if (p < end) return 0;
    }
    return ns_from_days(days_from_civil(year, month, day), ns, out);
}

#endif
