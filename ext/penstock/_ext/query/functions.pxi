# Part of evaluator.pyx: the functions of penstock.subscribers.query.sql.functions. What each does is said there.

cdef enum Function:
    F_ABS, F_ROUND, F_FLOOR, F_CEIL, F_SQRT, F_EXP, F_LN, F_LOG2, F_LOG10, F_POW, F_SIGN, F_GREATEST, F_LEAST, F_LOWER,
    F_UPPER, F_REVERSE, F_LENGTH, F_SUBSTR, F_LEFT, F_RIGHT, F_TRIM, F_LTRIM, F_RTRIM, F_REPLACE, F_STARTS_WITH,
    F_ENDS_WITH, F_CONTAINS, F_STRPOS, F_CONCAT_WS, F_SPLIT_PART, F_LPAD, F_RPAD, F_DATE_TRUNC, F_DATE_PART,
    F_ADD_MONTHS, F_TIME_BUCKET, F_EPOCH, F_EPOCH_MS, F_EPOCH_US, F_EPOCH_NS, F_TO_TIMESTAMP, F_MAKE_TIMESTAMP,
    F_MAKE_TIMESTAMP_NS, F_JSON_TEXT, F_JSON_NULLIFY, F_JSON_TYPE, F_JSON_ARRAY_LENGTH, F_DECODE, F_ENCODE,
    F_OCTET_LENGTH

# In the same order.
FUNCTION_NAMES = (
    "abs", "round", "floor", "ceil", "sqrt", "exp", "ln", "log2", "log10", "pow", "sign", "greatest", "least", "lower",
    "upper", "reverse", "length", "substr", "left", "right", "trim", "ltrim", "rtrim", "replace", "starts_with",
    "ends_with", "contains", "strpos", "concat_ws", "split_part", "lpad", "rpad", "date_trunc", "date_part",
    "add_months", "time_bucket", "epoch", "epoch_ms", "epoch_us", "epoch_ns", "to_timestamp", "make_timestamp",
    "make_timestamp_ns", "json_text", "json_nullify", "json_type", "json_array_length", "decode", "encode",
    "octet_length",
)

# The first argument of date_trunc and date_part, replaced by its number when a query is compiled.
cdef enum Unit:
    U_MICROSECOND, U_MILLISECOND, U_SECOND, U_MINUTE, U_HOUR, U_DAY, U_WEEK, U_MONTH, U_QUARTER, U_YEAR, U_ISOYEAR,
    U_DOW, U_ISODOW, U_DOY

UNIT_NAMES = (
    "microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year", "isoyear",
    "dow", "isodow", "doy",
)

cdef enum:
    MOST_FIXED_ARGUMENTS = 4
    BUCKET_ORIGIN_DAY = 10_959      # 2000-01-03, a Monday


cdef int round_int(int64_t number, int64_t digits, Value* out) noexcept nogil:
    cdef int64_t unit = 1
    cdef int64_t rest, rounded
    if digits >= 0:
        set_int(out, number)
        return OK
    if digits < -19:
        set_int(out, 0)
        return OK
    if digits == -19:       # half of it is in reach, the unit itself is not
        if number >= 5_000_000_000_000_000_000LL or number <= -5_000_000_000_000_000_000LL:
            return BAD_OVERFLOW
        set_int(out, 0)
        return OK
    while digits < 0:
        unit *= 10
        digits += 1
    rest = number % unit
    rounded = number - rest
    if rest >= unit - rest:
        if rounded > INT64_MAX - unit:
            return BAD_OVERFLOW
        rounded += unit
    elif -rest >= unit + rest:
        if rounded < INT64_MIN + unit:
            return BAD_OVERFLOW
        rounded -= unit
    set_int(out, rounded)
    return OK


cdef double round_double(double number, int64_t digits) noexcept nogil:
    cdef double unit, rounded
    if digits == 0:
        return round(number)
    if digits < 0:
        unit = pow(10, <double> -digits)
        rounded = round(number / unit) * unit
        return rounded if isfinite(rounded) else 0
    unit = pow(10, <double> digits)
    rounded = round(number * unit) / unit
    return rounded if isfinite(rounded) else number


cdef int call_maths(uint8_t function, double x, double y, Value* out) noexcept nogil:
    if function == F_FLOOR:
        x = floor(x)
    elif function == F_CEIL:
        x = ceil(x)
    elif function == F_SQRT:
        if x < 0:
            return BAD_RANGE
        x = sqrt(x)
    elif function == F_EXP:
        x = exp(x)
    elif function == F_POW:
        if x == 0 and y < 0:
            return BAD_RANGE
        x = pow(x, y)
    else:
        if x <= 0:
            return BAD_RANGE
        x = log(x) if function == F_LN else log2(x) if function == F_LOG2 else log10(x)
    set_double(out, x)
    return OK


cdef int call_number(uint8_t function, const Value* a, uint32_t count, Value* out) noexcept nogil:
    if function == F_ABS:
        if a[0].type == T_DOUBLE:
            set_double(out, fabs(a[0].of.d))
        elif a[0].of.i == INT64_MIN:
            return BAD_OVERFLOW
        else:
            set_int(out, -a[0].of.i if a[0].of.i < 0 else a[0].of.i)
        return OK
    if function == F_ROUND:
        if a[0].type == T_BIGINT:
            return round_int(a[0].of.i, a[1].of.i if count > 1 else 0, out)
        set_double(out, round_double(a[0].of.d, a[1].of.i if count > 1 else 0))
        return OK
    if function == F_SIGN:
        if a[0].type == T_DOUBLE:
            set_int(out, (a[0].of.d > 0) - (a[0].of.d < 0))
        else:
            set_int(out, (a[0].of.i > 0) - (a[0].of.i < 0))
        return OK
    return call_maths(function, a[0].of.d, a[1].of.d, out)


# substr takes no larger numbers.
cdef inline bint is_part(int64_t number) noexcept nogil:
    return -4_294_967_295LL <= number <= 4_294_967_295LL


cdef int call_substr(uint8_t function, const Value* a, uint32_t count, Value* out) noexcept nogil:
    cdef int64_t number = a[1].of.i
    cdef int64_t letters
    if function == F_SUBSTR:
        if not is_part(number) or count > 2 and not is_part(a[2].of.i):
            return BAD_RANGE
        take_part(a, number, a[2].of.i if count > 2 else INT64_MAX, out)
        return OK
    letters = count_letters(a[0].of.p, a[0].size)
    if number < 0:      # that many are left out at the other end
        number = letters + number if number > -letters else 0
    if number > letters:
        number = letters
    if function == F_LEFT:
        take_part(a, 1, number, out)
    else:
        take_part(a, letters - number + 1, number, out)
    return OK


cdef int call_text(uint8_t function, const Value* a, uint32_t count, Value* out, Arena* arena) noexcept nogil:
    cdef Value space
    cdef int64_t found
    if function == F_LOWER or function == F_UPPER:
        return change_case(a, function == F_UPPER, out, arena)
    if function == F_REVERSE:
        return reverse_text(a, out, arena)
    if function == F_LENGTH:
        set_int(out, count_letters(a[0].of.p, a[0].size))
    elif function == F_SUBSTR or function == F_LEFT or function == F_RIGHT:
        return call_substr(function, a, count, out)
    elif function == F_TRIM or function == F_LTRIM or function == F_RTRIM:
        set_text(&space, T_VARCHAR, <const uint8_t*> b" ", 1)
        return trim_text(a, a + 1 if count > 1 else &space, function != F_RTRIM, function != F_LTRIM, out)
    elif function == F_REPLACE:
        return replace_text(a, a + 1, a + 2, out, arena)
    elif function == F_STARTS_WITH:
        set_bool(out, a[0].size >= a[1].size and memcmp(a[0].of.p, a[1].of.p, a[1].size) == 0)
    elif function == F_ENDS_WITH:
        set_bool(out, a[0].size >= a[1].size
                 and memcmp(a[0].of.p + a[0].size - a[1].size, a[1].of.p, a[1].size) == 0)
    elif function == F_CONTAINS:
        set_bool(out, find_text(a[0].of.p, a[0].size, a[1].of.p, a[1].size) >= 0)
    elif function == F_STRPOS:
        found = find_text(a[0].of.p, a[0].size, a[1].of.p, a[1].size)
        set_int(out, 0 if found < 0 else count_letters(a[0].of.p, found) + 1)
    elif function == F_SPLIT_PART:
        split_part(a, a + 1, a[2].of.i, out)
    else:
        return pad_text(a, a[1].of.i, a + 2, function == F_LPAD, out, arena)
    return OK


cdef inline int64_t iso_weekday(int64_t days) noexcept nogil:
    return (days + 3) - 7 * floor_div(days + 3, 7) + 1      # 1970-01-01 was a Thursday


# The Monday of the first ISO week of a year: that of the week with 4 January.
cdef inline int64_t first_monday(int64_t year) noexcept nogil:
    cdef int64_t fourth = days_from_civil(year, 1, 4)
    return fourth - (iso_weekday(fourth) - 1)


cdef int64_t iso_year(const CivilTime* t) noexcept nogil:
    if t.days >= first_monday(t.year + 1):
        return t.year + 1
    return t.year - 1 if t.days < first_monday(t.year) else t.year


cdef int64_t date_part(int64_t unit, int64_t ns) noexcept nogil:
    cdef CivilTime t = civil_from_ns(ns)
    if unit == U_YEAR:
        return t.year
    if unit == U_ISOYEAR:
        return iso_year(&t)
    if unit == U_QUARTER:
        return (t.month - 1) // 3 + 1
    if unit == U_MONTH:
        return t.month
    if unit == U_WEEK:
        return (t.days - first_monday(iso_year(&t))) // 7 + 1
    if unit == U_DAY:
        return t.day
    if unit == U_DOW:
        return iso_weekday(t.days) % 7
    if unit == U_ISODOW:
        return iso_weekday(t.days)
    if unit == U_DOY:
        return t.days - days_from_civil(t.year, 1, 1) + 1
    if unit == U_HOUR:
        return t.ns // (3_600 * NS_PER_SECOND)
    if unit == U_MINUTE:
        return t.ns // (60 * NS_PER_SECOND) % 60
    if unit == U_SECOND:
        return t.ns // NS_PER_SECOND % 60
    if unit == U_MILLISECOND:
        return t.ns // 1_000_000 % 60_000
    return t.ns // 1_000 % 60_000_000


cdef int date_trunc(int64_t unit, int64_t ns, Value* out) noexcept nogil:
    cdef CivilTime t = civil_from_ns(ns)
    cdef int64_t step = 0
    cdef int64_t result = 0
    if unit <= U_HOUR:
        step = (1_000 if unit == U_MICROSECOND else 1_000_000 if unit == U_MILLISECOND else NS_PER_SECOND
                if unit == U_SECOND else 60 * NS_PER_SECOND if unit == U_MINUTE else 3_600 * NS_PER_SECOND)
        t.ns -= t.ns % step
    else:
        t.ns = 0
        if unit == U_WEEK:
            t.days -= iso_weekday(t.days) - 1
        elif unit == U_MONTH:
            t.days = days_from_civil(t.year, t.month, 1)
        elif unit == U_QUARTER:
            t.days = days_from_civil(t.year, (t.month - 1) // 3 * 3 + 1, 1)
        elif unit == U_YEAR:
            t.days = days_from_civil(t.year, 1, 1)
    if not ns_from_days(t.days, t.ns, &result):
        return BAD_RANGE
    set_time(out, result)
    return OK


cdef int add_months(int64_t ns, int64_t months, Value* out) noexcept nogil:
    cdef CivilTime t = civil_from_ns(ns)
    cdef int64_t total, year, result = 0
    cdef int month, day
    if months > 100_000 or months < -100_000:
        return BAD_RANGE
    total = t.year * 12 + t.month - 1 + months
    year = floor_div(total, 12)
    month = <int> (total - 12 * year) + 1
    day = min(t.day, days_in_month(year, month))
    if not ns_from_days(days_from_civil(year, month, day), t.ns, &result):
        return BAD_RANGE
    set_time(out, result)
    return OK


# A number of units as a TIMESTAMP.
cdef int time_from(int64_t number, int64_t ns_per_unit, Value* out) noexcept nogil:
    cdef int64_t ns = 0
    if __builtin_mul_overflow(number, ns_per_unit, &ns):
        return BAD_RANGE
    set_time(out, ns)
    return OK


cdef inline int64_t floor_mod(int64_t a, int64_t b) noexcept nogil:
    return a - b * floor_div(a, b)


# Half away from zero, as DuckDB makes milliseconds of a finer time.
cdef inline int64_t round_div(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t down = floor_div(a, b)
    cdef int64_t twice = 2 * (a - b * down)
    return down + 1 if twice > b or twice == b and a > 0 else down


cdef int call_time(uint8_t function, const Value* a, Value* out) noexcept nogil:
    cdef int64_t ns = 0, into
    cdef double micros
    if function == F_DATE_TRUNC:
        return date_trunc(a[0].of.i, a[1].of.i, out)
    if function == F_DATE_PART:
        set_int(out, date_part(a[0].of.i, a[1].of.i))
    elif function == F_ADD_MONTHS:
        return add_months(a[0].of.i, a[1].of.i, out)
    elif function == F_TIME_BUCKET:
        if a[0].of.i < 1:
            return BAD_ARGUMENT
        # how far the time is into its bucket, without leaving 64 bits on the way
        into = floor_mod(floor_mod(a[1].of.i, a[0].of.i) - floor_mod(BUCKET_ORIGIN_DAY * NS_PER_DAY, a[0].of.i),
                         a[0].of.i)
        if __builtin_sub_overflow(a[1].of.i, into, &ns):
            return BAD_RANGE
        set_time(out, ns)
    elif function == F_EPOCH:
        ns = floor_div(a[0].of.i, NS_PER_SECOND)
        set_double(out, <double> ns + <double> (a[0].of.i - ns * NS_PER_SECOND) / 1e9)
    elif function == F_EPOCH_MS:
        if a[0].type == T_BIGINT:
            return time_from(a[0].of.i, 1_000_000, out)
        set_int(out, round_div(a[0].of.i, 1_000_000))
    elif function == F_EPOCH_US:
        set_int(out, round_div(a[0].of.i, 1_000))
    elif function == F_EPOCH_NS:
        set_int(out, a[0].of.i)
    elif function == F_TO_TIMESTAMP:
        micros = a[0].of.d * 1e6
        if not double_to_int(micros, &ns):
            return BAD_RANGE
        return time_from(ns, 1_000, out)
    elif function == F_MAKE_TIMESTAMP:
        return time_from(a[0].of.i, 1_000, out)
    else:
        set_time(out, a[0].of.i)
    return OK


cdef void json_type(const Value* json, Value* out) noexcept nogil:
    cdef const uint8_t* p = json.of.p
    cdef int64_t number = 0
    cdef const char* name = b"DOUBLE"
    if p[0] == c'{':
        name = b"OBJECT"
    elif p[0] == c'[':
        name = b"ARRAY"
    elif p[0] == c'"':
        name = b"VARCHAR"
    elif p[0] == c't' or p[0] == c'f':
        name = b"BOOLEAN"
    elif p[0] == c'n':
        name = b"NULL"
    elif is_whole(p, json.size) and whole_number(p, json.size, &number) == 0:
        name = b"BIGINT" if p[0] == c'-' else b"UBIGINT"
    elif is_whole(p, json.size) and p[0] != c'-' and is_unsigned64(p, json.size):
        name = b"UBIGINT"
    set_text(out, T_VARCHAR, <const uint8_t*> name, strlen(name))


cdef bint is_unsigned64(const uint8_t* p, uint32_t size) noexcept nogil:
    return size < 20 or size == 20 and memcmp(p, b"18446744073709551615", 20) <= 0


cdef int call_json(uint8_t function, const Value* a, Value* out, Arena* arena) noexcept nogil:
    if function == F_JSON_TEXT:
        return json_to_text(a, out, arena)
    if function == F_JSON_NULLIFY:
        out[0] = a[0]
        if a[0].of.p[0] == c'n':
            set_null(out)
    elif function == F_JSON_TYPE:
        json_type(a, out)
    else:
        set_int(out, count_elements(a[0].of.p, a[0].of.p + a[0].size, 1) if a[0].of.p[0] == c'[' else 0)
    return OK


cdef int call_blob(uint8_t function, const Value* a, Value* out) noexcept nogil:
    if function == F_OCTET_LENGTH:
        set_int(out, a[0].size)
        return OK
    if function == F_DECODE and not is_utf8(a[0].of.p, a[0].size):
        return BAD_CAST
    out[0] = a[0]
    out.type = T_VARCHAR if function == F_DECODE else T_BLOB
    return OK


# The arguments are there and none is NULL.
cdef int call_fixed(uint8_t function, const Value* a, uint32_t count, Value* out, Arena* arena) noexcept nogil:
    if function <= F_SIGN:
        return call_number(function, a, count, out)
    if function <= F_RPAD:
        return call_text(function, a, count, out, arena)
    if function < F_JSON_TEXT:
        return call_time(function, a, out)
    if function < F_DECODE:
        return call_json(function, a, out, arena)
    return call_blob(function, a, out)
