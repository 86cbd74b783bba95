# The pending entries of one consumer group of a classic queue: what was given to a consumer and is not settled.
#
# Entries are found by offset (hash table), kept in the order of their offsets (a list: claims at the cursor always come
# behind), and by the time at which something has to be done with them (binary heap). Every operation is O(1) or
# O(log n), but for release.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum EntryState:
    ENTRY_CLAIMED = 1       # with a consumer; `due` is when it may be given to another
    ENTRY_WAITING = 2       # nacked: nobody gets it before `due`
    ENTRY_READY = 3         # to be given to a consumer as soon as its record is read again
    ENTRY_DEAD = 4          # to be dead-lettered: rejected, or delivered too often; nobody gets it
    ENTRY_HELD = 5          # waits for a consumer that may receive it; `due` is when it expires. Stored as READY


cdef enum Settlement:
    SETTLED = 0
    NOT_PENDING = 1         # unknown, or settled before
    NOT_YOURS = 2           # another consumer has it


cdef struct PendingEntry:
    int64_t offset
    int64_t due             # ms since the epoch; of CLAIMED and WAITING entries
    uint32_t consumer       # number of the consumer that has or had it, 0 = none
    uint32_t heap_at        # place in the heap, NOT_IN_HEAP of READY and DEAD ones
    uint32_t next           # in the order of offsets, by index; and the chain of free ones
    uint32_t previous
    uint32_t hash_next
    uint16_t deliveries     # 65535 means that or more
    uint8_t state
    # DEAD: 1 = rejected, 2 = max-deliveries. Other states: number of nacks, and IS_LONG if a consumer has chosen the
    # due time.
    uint8_t reason


cdef class PendingList:
    cdef PendingEntry* entries
    cdef uint32_t capacity
    cdef uint32_t free_head, first, last
    cdef uint32_t* buckets
    cdef uint32_t bucket_count
    cdef uint32_t* heap
    cdef uint32_t heap_count
    cdef readonly uint32_t count
    cdef public uint32_t limit              # claims are refused above it
    cdef readonly int64_t cursor            # the next offset that was never claimed
    cdef int64_t* changed                   # numbers of windows changed since take_changes, without duplicates
    cdef uint32_t changed_count, changed_capacity
    cdef bint head_changed                  # cursor or committed moved
    cdef readonly uint32_t ready_count, dead_count
    cdef uint32_t first_ready, first_dead   # where the search for one begins: none comes before it
    cdef int64_t last_marked                # the window marked as changed last, -1 = none
    cdef uint8_t bucket_shift, changed_shift

    # Everything before it is settled: the lowest pending offset, or the cursor.
    cdef int64_t committed_offset(self) noexcept
    cdef bint is_full(self) noexcept
    # The record at `offset` (not below the cursor) goes to `consumer`, for the first time. The cursor moves behind it.
    # ValueError below the cursor, OverflowError when the list is full: ask is_full() first.
    cdef int claim(self, int64_t offset, uint32_t consumer, int64_t due) except -1
    # Offsets before `offset` that were not claimed are none of this group's business (filtered, expired).
    cdef int skip_to(self, int64_t offset) except -1
    # The next claim is at `offset`, also back: not before an entry that is pending.
    cdef int move_to(self, int64_t offset) except -1
    # A READY entry goes to a consumer again; its number of deliveries, counting this one, or 0 if it is not READY.
    cdef uint32_t claim_again(self, int64_t offset, uint32_t consumer, int64_t due) except? 0xFFFFFFFF
    # Acknowledged by `consumer` (0 = whoever has it): the entry is removed.
    cdef Settlement settle(self, int64_t offset, uint32_t consumer) except *
    # Nobody gets it before `due`. `deliveries` is filled in with how often it was delivered so far.
    cdef Settlement nack(self, int64_t offset, uint32_t consumer, int64_t due, uint32_t* deliveries) except *
    # nack() until a time that the consumer has chosen.
    cdef Settlement nack_until(self, int64_t offset, uint32_t consumer, int64_t due) except *
    # It stays with its consumer until `due`.
    cdef Settlement extend(self, int64_t offset, uint32_t consumer, int64_t due) except *
    # To be dead-lettered for `reason`; stays pending, without a consumer, until it is settled with consumer 0.
    cdef Settlement bury(self, int64_t offset, uint32_t consumer, uint8_t reason) except *
    # A READY entry, or the record at `offset` (not below the cursor): it is HELD until `due` (0 = without an end).
    cdef int hold(self, int64_t offset, int64_t due) except -1
    # A HELD entry becomes READY; False if it is not HELD any more.
    cdef bint release_held(self, int64_t offset) except -1
    # Make all HELD entries READY and return their number. Walks the whole list.
    cdef uint32_t release_all_held(self) except? 0xFFFFFFFF
    # READY, whatever it was; False if there is no such entry, or it is DEAD.
    cdef bint give_up(self, int64_t offset) except *
    # Everything this consumer has becomes READY (deliveries unchanged); how many.
    cdef uint32_t release(self, uint32_t consumer) except? 0xFFFFFFFF
    # The entry, or NULL; valid until the next change.
    cdef const PendingEntry* find(self, int64_t offset) noexcept
    # When something is due next, ms; -1 = never.
    cdef int64_t next_due(self) noexcept


cdef enum:
    NACKS = 0x7F            # of PendingEntry.reason
    IS_LONG = 0x80          # a consumer has chosen the due time
    LASTING = 0x80000000    # numbers of consumers from here on mean the same after a restart
