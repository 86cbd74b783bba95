# The log of an APPLICATION client, or its part of a shared one, on its way to the client's connection.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock._ext.application.pack cimport PackTracker
from penstock._ext.hub.connection cimport Desk, Outlet
from penstock._ext.hub.inflight cimport WindowPart
from penstock._ext.record.segment cimport RecordView
from penstock._ext.wire.buffer cimport Buffer


# What a client had in flight when its last connection ended, until the record is read again.
cdef struct Saved:
    int64_t offset
    uint16_t packet_id      # 0 = it has to get a new one
    uint8_t state           # as in pack.Entry
    bint is_new             # PUBREC came on this connection, and no context that says so is durable yet


# A PUBREL that may leave when the snapshot with this number is durable.
cdef struct Release:
    uint64_t mark
    uint16_t packet_id


cdef class ApplicationDesk(Desk):
    cdef list _news                     # lanes that want something of Python
    cdef list _dirty                    # lanes whose stored context is behind
    cdef object _on_lanes               # takes the lanes with news
    cdef object _on_detach              # takes a session whose lanes must be closed
    cdef public uint32_t packs_in_flight
    cdef public uint32_t flush_after    # messages of a lane after which its output is sent


cdef class Lane(Outlet):
    cdef readonly str part_name         # of the share, or empty
    cdef WindowPart part                # while it is the session's
    cdef readonly str topic
    cdef readonly uint32_t partition
    cdef readonly bint is_shared
    cdef readonly bint is_closed
    cdef readonly bytes context         # when it is closed
    cdef uint8_t qos_limit
    cdef uint32_t identifier            # of the shared subscription
    cdef bint keeps_retain
    cdef void** trackers                # the packs under way, oldest first: strong references to PackTracker
    cdef uint32_t tracker_count, tracker_capacity
    cdef uint32_t sending               # the pack whose records are sent next
    cdef uint32_t pack_size             # records of a full pack
    cdef uint32_t planned               # records of all packs
    cdef uint64_t planned_bytes         # what these packs hold in memory
    cdef uint32_t ahead                 # those of them that are sent, or done
    cdef uint32_t unflushed
    cdef readonly int64_t committed     # everything before it is acknowledged
    cdef readonly int64_t position      # the next offset that is planned
    cdef public int64_t until           # only records before it are this lane's; -1 = all
    cdef int64_t* seen                  # per source partition: the highest source offset planned, -1 = none
    cdef uint32_t seen_count
    cdef Saved* kept                    # in flight on an earlier connection and not read again yet, by offset
    cdef uint32_t kept_count, kept_capacity, kept_at
    cdef int64_t kept_end               # before it, what is not kept is done
    cdef uint64_t mark                  # of the last snapshot
    cdef uint64_t durable               # every snapshot up to this one is durable
    cdef Release* releases              # ring would be more: moved to the front when full
    cdef uint32_t release_at, release_count, release_capacity
    cdef bint is_dirty, is_listed, has_news
    cdef public bint is_paused          # the caller does not read it now
    cdef public bint is_live            # what is in flight was sent on the connection that the client has
    cdef public set unsent              # except these packet ids; of a lane that is closed: those not sent on it
    cdef bint is_resumed                # PUBRELs of an earlier connection were sent again
    cdef public list peers              # sessions of the share: one of them may have what this client may not
    cdef readonly bint is_stale         # a planned record is for one of them since the rules changed: plan again
    cdef Lane follower                  # not read before everything of this lane, which has an end, was sent
    cdef bint is_waiting                # it is the follower of another lane
    cdef readonly bytes denied_topic    # of the record at `position`, which is for one of them; None = no such record
    cdef readonly uint64_t delivered, acknowledged, expired, duplicates, retried, skipped, damaged

    cdef int keep(self, int64_t offset, uint16_t packet_id, uint8_t state) except -1
    cdef int put_runs(self, Buffer* out) except -1
    cdef int plan(self, PackTracker tracker, const RecordView* record, uint16_t part, uint32_t at) except -1
    cdef bint note_seen(self, uint32_t partition, int64_t offset) except -1
    cdef Saved* take_kept(self, int64_t offset) except? NULL
    cdef int drop_kept(self, int64_t offset) except -1
    cdef bint plan_parts(self, PackTracker tracker) except -1
    cdef int add_tracker(self, PackTracker tracker) except -1
    cdef int change(self) except -1
    cdef int call(self) except -1
    cdef inline uint32_t done_ahead(self) noexcept
    cdef int advance(self) except -1
    cdef int finish(self, PackTracker tracker, uint32_t index) except -1
    cdef int await_release(self, uint16_t packet_id) except -1
    cdef uint32_t give_up(self, PackTracker tracker) except? 0xFFFFFFFF
