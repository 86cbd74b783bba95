"""Access rules compiled for one client; see acl.pxd.

A pattern stands for a set of topics, and so does a filter. Three questions are asked about them:

    matches     is this topic in the pattern's set?               publish, delivery
    intersects  is some topic in both sets?                       may a filter be subscribed to: it could get something
    covers      is every topic of the second in the first?        is a filter denied as a whole

    +/b      matches a/b and /b, not b and not a/b/c
    a/#      matches a, a/ and a/b/c
    # and +  in front do not match $SYS/x [MQTT-4.7.2-1]; $SYS/# does
    +/#      covers #, because a topic has at least one level; a/+/# does not cover a/#, because a is in it
    /+/#     covers /#, because a topic has at least one character [MQTT-4.7.3-1]; + and /# have nothing in common
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

from penstock._ext.match.topic_tree cimport NODE_LITERAL, NODE_PLUS, LevelList, levels_free, split_filter

PUBLISH = <int> ACL_PUBLISH
RECEIVE = <int> ACL_RECEIVE
SUBSCRIBE = <int> ACL_SUBSCRIBE


cdef inline bint is_same(const AclLevel* a, const AclLevel* b) noexcept:
    return a.size == b.size and memcmp(a.text, b.text, a.size) == 0


cdef inline bint is_dollar(const AclLevel* level) noexcept:
    return level.kind == ACL_LITERAL and level.size > 0 and level.text[0] == c'$'


# A # stands for no level as well, unless the topic would then be empty: in # and in /#.
cdef inline bint rest_needs_level(const AclPattern* pattern, uint32_t at) noexcept:
    return at == 0 or (at == 1 and pattern.levels.kind == ACL_LITERAL and pattern.levels.size == 0)


cdef bint matches(const AclPattern* pattern, const uint8_t* topic, uint32_t size) noexcept:
    cdef const uint8_t* end = topic + size
    cdef const uint8_t* slash
    cdef const AclLevel* level
    cdef uint32_t i, length
    # [MQTT-4.7.2-1]
    if size > 0 and topic[0] == c'$' and pattern.levels[0].kind != ACL_LITERAL:
        return False
    for i in range(pattern.count):
        level = pattern.levels + i
        if level.kind == ACL_REST:
            return True
        if topic == NULL:
            return False
        slash = <const uint8_t*> memchr(topic, c'/', <size_t> (end - topic))
        length = <uint32_t> ((end if slash == NULL else slash) - topic)
        if level.kind == ACL_LITERAL and (level.size != length or memcmp(level.text, topic, length) != 0):
            return False
        topic = slash + 1 if slash != NULL else slash
    return topic == NULL


cdef bint intersects(const AclPattern* a, const AclPattern* b) noexcept:
    cdef uint32_t i = 0
    # [MQTT-4.7.2-1]: a wildcard in front and a name with $ have no topic in common
    if (is_dollar(a.levels) and b.levels.kind != ACL_LITERAL) or (is_dollar(b.levels) and a.levels.kind != ACL_LITERAL):
        return False
    while i < a.count and i < b.count:
        if a.levels[i].kind == ACL_REST or b.levels[i].kind == ACL_REST:
            return True
        if a.levels[i].kind == ACL_LITERAL and b.levels[i].kind == ACL_LITERAL \
                and not is_same(a.levels + i, b.levels + i):
            return False
        i += 1
    # the longer one may go on with # only, if that may stand for no level
    if i < a.count:
        return a.levels[i].kind == ACL_REST and not rest_needs_level(a, i)
    return i == b.count or (b.levels[i].kind == ACL_REST and not rest_needs_level(b, i))


cdef bint covers(const AclPattern* a, const AclPattern* b) noexcept:
    cdef uint32_t i = 0
    cdef uint32_t j = 0
    cdef bint in_rest = False
    # [MQTT-4.7.2-1]
    if a.levels.kind != ACL_LITERAL and is_dollar(b.levels):
        return False
    while i < a.count:
        if a.levels[i].kind == ACL_REST:
            return True
        if j == b.count:
            return False
        if b.levels[j].kind == ACL_REST:
            # b goes on without end and a does not, unless b's # is in truth +/#
            if in_rest or a.levels[i].kind != ACL_PLUS or not rest_needs_level(b, j):
                return False
            in_rest = True
            i += 1
            continue
        if a.levels[i].kind == ACL_LITERAL and (b.levels[j].kind != ACL_LITERAL
                                                or not is_same(a.levels + i, b.levels + j)):
            return False
        i += 1
        j += 1
    return j == b.count


# A filter as a pattern, for the length of one question.
cdef class FilterPattern:
    cdef AclPattern pattern
    cdef AclLevel* levels
    cdef bytes text

    def __cinit__(self, bytes text not None):
        cdef LevelList split
        cdef uint32_t i
        self.text = text
        split.items = NULL
        split.count = split.capacity = 0
        try:
            split_filter(&split, <const uint8_t*> (<char*> text), <uint32_t> len(text), 0)
            self.levels = <AclLevel*> malloc(split.count * sizeof(AclLevel))
            if self.levels == NULL:
                raise MemoryError()
            for i in range(split.count):
                self.levels[i].text = split.items[i].name
                self.levels[i].size = split.items[i].size
                if split.items[i].kind == NODE_LITERAL:
                    self.levels[i].kind = ACL_LITERAL
                else:
                    self.levels[i].kind = ACL_PLUS if split.items[i].kind == NODE_PLUS else ACL_REST
            self.pattern.levels = self.levels
            self.pattern.count = split.count
        finally:
            levels_free(&split)

    def __dealloc__(self):
        free(self.levels)


def filters_intersect(bytes a not None, bytes b not None):
    cdef FilterPattern first = FilterPattern(a)
    cdef FilterPattern second = FilterPattern(b)
    return intersects(&first.pattern, &second.pattern)


def filter_covers(bytes a not None, bytes b not None):
    cdef FilterPattern first = FilterPattern(a)
    cdef FilterPattern second = FilterPattern(b)
    return covers(&first.pattern, &second.pattern)


cdef uint8_t level_kind(object level, bint last) except 255:
    if isinstance(level, bytes):
        return ACL_LITERAL
    if level == "+":
        return ACL_PLUS
    if level == "#" and last:
        return ACL_REST
    if level == "#":
        raise ValueError("the wildcard # is only allowed as the last level of an access pattern")
    raise ValueError(f"a level of an access pattern is bytes, '+' or '#', not {level!r}")


cdef tuple check_rule(object rule):
    allow, actions, levels = rule
    if not 0 < actions <= (ACL_PUBLISH | ACL_RECEIVE | ACL_SUBSCRIBE):
        raise ValueError(f"an access rule needs actions out of publish, receive and subscribe, not {actions!r}")
    if not levels:
        raise ValueError("an access pattern has at least one level")
    return bool(allow), int(actions), tuple(levels)


cdef class AclProgram:
    def __cinit__(self, rules):
        self.rules = tuple([check_rule(rule) for rule in rules])
        self._compile()

    cdef int _compile(self) except -1:
        cdef size_t level_count = 0
        cdef size_t text_size = 0
        cdef uint32_t i
        cdef AclRule* rule
        cdef AclLevel* level
        cdef uint8_t* text
        cdef bytes literal
        for _, _, levels in self.rules:
            level_count += len(levels)
            for piece in levels:
                text_size += len(piece)
        self._rules = malloc(len(self.rules) * sizeof(AclRule) + level_count * sizeof(AclLevel) + text_size + 1)
        if self._rules == NULL:
            raise MemoryError()
        rule = <AclRule*> self._rules
        level = <AclLevel*> (rule + len(self.rules))
        text = <uint8_t*> (level + level_count)
        for allow, actions, levels in self.rules:
            rule.pattern.levels = level
            rule.pattern.count = <uint32_t> len(levels)
            rule.allow = allow
            rule.actions = actions
            # no topic is empty [MQTT-4.7.3-1]
            rule.dead = levels == (b"",)
            for i in range(rule.pattern.count):
                level.kind = level_kind(levels[i], i + 1 == rule.pattern.count)
                level.text = text
                level.size = 0
                if level.kind == ACL_LITERAL:
                    literal = levels[i]
                    # A client id or user name put into a pattern stays a name: with these bytes in it there is no
                    # topic level it could equal, and it must not act as a wildcard or as two levels.
                    if b"+" in literal or b"#" in literal or b"/" in literal:
                        rule.dead = True
                    level.size = <uint32_t> len(literal)
                    memcpy(text, <char*> literal, level.size)
                    text += level.size
                level += 1
            rule += 1
        self._rule_count = <uint32_t> len(self.rules)
        return 0

    def __dealloc__(self):
        free(self._rules)

    # The first rule about this topic and action; NULL if there is none.
    cdef const AclRule* find(self, const uint8_t* topic, uint32_t size, AclAction action) noexcept:
        cdef const AclRule* rule = <const AclRule*> self._rules
        cdef const AclRule* end = rule + self._rule_count
        cdef uint8_t wanted = <uint8_t> action
        if action == ACL_RECEIVE:
            wanted = ACL_RECEIVE | ACL_SUBSCRIBE
        while rule < end:
            if rule.actions & wanted and not rule.dead and matches(&rule.pattern, topic, size):
                return rule
            rule += 1
        return NULL

    cdef bint allows(self, const uint8_t* topic, uint32_t size, AclAction action) noexcept:
        cdef const AclRule* rule = self.find(topic, size, action)
        return rule != NULL and rule.allow

    cdef bint names_verb(self, const uint8_t* topic, uint32_t size) noexcept:
        cdef const AclRule* rule = <const AclRule*> self._rules
        cdef const AclRule* end = rule + self._rule_count
        while rule < end:
            if rule.actions & ACL_PUBLISH and not rule.dead and matches(&rule.pattern, topic, size):
                if not rule.allow:
                    return False
                if rule.pattern.levels[rule.pattern.count - 1].kind == ACL_LITERAL:
                    return True
            rule += 1
        return False

    cdef bint covers_filter(self, bytes filter) except -1:
        cdef FilterPattern asked = FilterPattern(filter)
        cdef const AclRule* rule = <const AclRule*> self._rules
        cdef const AclRule* end = rule + self._rule_count
        while rule < end:
            if rule.actions & (ACL_RECEIVE | ACL_SUBSCRIBE) and not rule.dead:
                if rule.allow and covers(&rule.pattern, &asked.pattern):
                    return True
                if not rule.allow and intersects(&rule.pattern, &asked.pattern):
                    return False
            rule += 1
        return False

    def may_use_verb(self, bytes topic not None):
        """Whether a rule allows publishing to exactly this verb of a queue, such as `$queue/events/$commit`."""
        return self.names_verb(<const uint8_t*> (<char*> topic), <uint32_t> len(topic))

    def may_receive_all(self, bytes filter not None):
        """Whether one rule allows everything the filter can match, and no rule before it denies a part."""
        return self.covers_filter(filter)

    def may_publish(self, bytes topic not None):
        return self.allows(<const uint8_t*> (<char*> topic), <uint32_t> len(topic), ACL_PUBLISH)

    def may_receive(self, bytes topic not None):
        return self.allows(<const uint8_t*> (<char*> topic), <uint32_t> len(topic), ACL_RECEIVE)

    def may_subscribe(self, bytes filter not None):
        """Whether a filter (without $share) could deliver anything; what it delivers is asked per topic."""
        cdef const AclRule* rule = self.find_filter(filter)
        return rule != NULL and rule.allow != 0

    cdef const AclRule* find_filter(self, bytes filter) except? NULL:
        cdef FilterPattern asked = FilterPattern(filter)
        cdef const AclRule* rule = <const AclRule*> self._rules
        cdef const AclRule* end = rule + self._rule_count
        while rule < end:
            if rule.actions & ACL_SUBSCRIBE and not rule.dead:
                if rule.allow and intersects(&rule.pattern, &asked.pattern):
                    return rule
                if not rule.allow and covers(&rule.pattern, &asked.pattern):
                    return rule
            rule += 1
        return NULL

    def find_publish(self, bytes topic not None):
        """The number of the rule that decides whether the topic may be published to; None if there is none."""
        return self._number(self.find(<const uint8_t*> (<char*> topic), <uint32_t> len(topic), ACL_PUBLISH))

    def find_subscribe(self, bytes filter not None):
        """The number of the rule that decides whether the filter may be subscribed to; None if there is none."""
        return self._number(self.find_filter(filter))

    cdef object _number(self, const AclRule* rule):
        return None if rule == NULL else rule - <const AclRule*> self._rules
