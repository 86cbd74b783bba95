# The hot unit: connections, sessions and the hub they share. One compilation unit (connection.pyx includes the .pxi
# files), because a message passes through all three and calls across units are not inlined.
#
# Who may change what: everything here belongs to the event loop's thread. Routing a message (route.pxi) never calls a
# handler and never closes a connection, so subscriptions and sessions stand still while a match is walked.
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock._ext.match.acl cimport AclProgram
from penstock._ext.wire.buffer cimport Buffer, buffer_free
from penstock._ext.wire.codec cimport AckView, PublishView
from penstock._ext.record.envelope cimport EnvelopeView
from penstock._ext.hub.gathering cimport Gathering
from penstock._ext.hub.message cimport Message, message_unref
from penstock._ext.hub.inflight cimport Extras, Hold, IdSet, Queue, Queued, Slot, Window, WindowPart, extras_new
from penstock._ext.match.partition cimport HashFunction
from penstock._ext.queue.pending cimport PendingList
from penstock._ext.match.retained cimport RetainedTree
from penstock._ext.record.segment cimport RecordPack, RecordView
from penstock._ext.match.trie cimport Match, Member, ShareGroup, Subscriber, Trie
from penstock._ext.wire.websocket cimport WsReader


cdef enum ConnectionState:
    WAITING = 0             # for CONNECT
    DECIDING = 1            # CONNECT read, the handler has not answered yet: what follows is kept unread
    AUTHENTICATING = 2      # an AUTH exchange runs: only AUTH and DISCONNECT are read
    CONNECTED = 3
    CLOSING = 4             # ended for the session; the transport still sends what it holds
    CLOSED = 5


include "drop_causes.pxi"
include "rate_declarations.pxi"
include "counters_declarations.pxi"
include "topic_declarations.pxi"


cdef enum ShareStrategy:
    SHARE_ROUND_ROBIN = 0
    SHARE_RANDOM = 1
    SHARE_STICKY = 2
    SHARE_HASH_CLIENT = 3
    SHARE_HASH_TOPIC = 4


cdef enum IngestMode:
    INGEST_NONE = 0
    INGEST_PERSISTENT = 1   # QoS 1 and 2
    INGEST_ALL = 2


# An answer to a publish that waits until the log has it.
cdef struct PendingAck:
    uint64_t ticket         # of the batch the publish is in; RELAYED: another node has yet to answer
    uint16_t packet_id
    uint8_t packet_type     # PUBACK or PUBREC
    uint8_t reason          # DUPLICATE: of a QoS 2 publish that came again before the log had it
    uint8_t text            # why, in words: index of ANSWER_TEXTS


include "turns_declarations.pxi"
include "hub_declarations.pxi"
include "outlet_declarations.pxi"
include "session_declarations.pxi"
include "connection_declarations.pxi"
include "queue_declarations.pxi"
include "call_declarations.pxi"
