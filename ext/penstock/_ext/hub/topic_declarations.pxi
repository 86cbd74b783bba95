# Part of connection.pxd: what a publisher's connection remembers of topics.

# A publisher's recent topics: who gets them, and whether it may publish there.
cdef struct TopicSlot:
    Match* match
    uint32_t partition      # of the ingest log
    bint allowed


# The same for topics under $queue/: the queues that get the message, or what is to be settled.
cdef struct QueueSlot:
    Match* match
    void* queue             # of a settlement: strong reference to DurableQueue, NULL = there is none
    uint8_t verb            # QueueVerb
    uint8_t refusal         # AnswerText: why no queue was made for it
    bint allowed


cdef struct Alias:
    uint8_t* topic
    uint64_t hash
    uint32_t size


# How many times each topic is under way, by the hash of the topic: see topic_counts.pxi.
cdef struct TopicCount:
    uint64_t hash           # 0 = free
    uint32_t count

cdef struct TopicCounts:
    TopicCount* items
    uint32_t used
    uint32_t capacity       # a power of 2
