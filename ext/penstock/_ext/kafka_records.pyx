"""Record packs to and from the messages of confluent-kafka, which is the one way in and out of the Kafka provider.

A message is a Python object there, so these loops are yellow by nature; what is saved is everything around it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from penstock._ext.segment cimport NO_KEY, NO_VALUE, RecordPack, RecordView

# What a method without arguments does, called without the way through the interpreter; NULL if it is not such a method.
cdef extern from *:
    """
    static PyCFunction find_method(PyObject *type, const char *name) {
        PyCFunction found = NULL;
        PyObject *method = PyObject_GetAttrString(type, name);
        if (method != NULL && Py_IS_TYPE(method, &PyMethodDescr_Type)) {
            PyMethodDef *definition = ((PyMethodDescrObject *)method)->d_method;
            if (definition->ml_flags == METH_NOARGS) found = definition->ml_meth;
        }
        Py_XDECREF(method);
        if (PyErr_Occurred()) PyErr_Clear();
        return found;
    }
    static PyObject *call_method(PyCFunction method, PyObject *self) { return method(self, NULL); }
    """
    ctypedef void* PyCFunction
    PyCFunction find_method(object type, const char* name)
    object call_method(PyCFunction method, object self)


def find_odd(RecordPack pack not None, int64_t oldest, int64_t newest, size_t largest):
    """What speaks against producing the pack as one batch, which has neither headers nor times of its own:
    0 nothing, 1 headers or a time outside the bounds, 2 a record larger than allowed."""
    cdef size_t position = 0, size
    cdef RecordView view
    cdef int odd = 0
    while pack.next(&position, &view):
        size = view.headers_size
        if view.key_size != NO_KEY:
            size += view.key_size
        if view.value_size != NO_VALUE:
            size += view.value_size
        if size > largest:
            return 2
        if view.headers_size or view.timestamp < oldest or view.timestamp > newest:
            odd = 1
    return odd


def messages_of(RecordPack pack not None):
    """The dictionaries that Producer.produce_batch takes."""
    cdef size_t position = 0
    cdef RecordView view
    cdef list messages = []
    cdef object value
    while pack.next(&position, &view):
        if view.value_size == NO_VALUE:
            value = None
        else:
            value = PyBytes_FromStringAndSize(<const char*> view.value, view.value_size)
        if view.key_size == NO_KEY:
            messages.append({"value": value})
        else:
            messages.append({"value": value, "key": PyBytes_FromStringAndSize(<const char*> view.key, view.key_size)})
    return messages


cdef class Delivery:
    """Counts the delivery reports of a pack; `report` is its messages' callback. Those that are complete go to
    `finished`."""

    cdef readonly str topic
    cdef readonly int partition
    cdef readonly RecordPack pack
    cdef readonly object on_done
    cdef readonly object error              # the first one
    cdef readonly uint32_t failed
    cdef readonly int64_t base_offset       # of the first record, -1 = not known
    cdef int64_t _last_offset
    cdef uint32_t _waiting
    cdef list _finished

    def __init__(self, str topic, int partition, RecordPack pack, object on_done, list finished):
        self.topic = topic
        self.partition = partition
        self.pack = pack
        self.on_done = on_done
        self.base_offset = -1
        self._waiting = pack.count
        self._finished = finished

    def report(self, error, message):
        if error is not None:
            self.fail(error, 1)
            return
        if self.base_offset < 0 and self.failed == 0:
            self.base_offset = max(<int64_t> message.offset(), -1)
        self._waiting -= 1
        if self._waiting == 0:
            self._last_offset = message.offset()
            self._finished.append(self)

    @property
    def is_dense(self):
        """Whether no other producer's records lie among these."""
        cdef int64_t span = self._last_offset - self.base_offset + 1
        return self.failed == 0 and self.base_offset >= 0 and span == self.pack.count

    @property
    def is_complete(self):
        return self._waiting == 0

    cpdef void fail(self, object error, uint32_t count):
        """So many records will not be written."""
        if count == 0:
            return
        if self.error is None:
            self.error = error
        self.failed += count
        self._waiting -= count
        if self._waiting == 0:
            self._finished.append(self)


cdef class Accessors:
    """Asks messages of one type: eight questions each, so the way to the answer counts."""

    cdef object kind
    cdef tuple names
    cdef PyCFunction direct[8]

    def __cinit__(self, object kind):
        self.kind = kind
        self.names = ("error", "topic", "partition", "offset", "value", "key", "headers", "timestamp")
        for i in range(8):
            self.direct[i] = find_method(kind, self.names[i].encode())

    cdef object ask(self, object message, int which):
        if self.direct[which] != NULL and type(message) is self.kind:
            return call_method(self.direct[which], message)
        return getattr(message, self.names[which])()


cdef enum:
    ERROR, TOPIC, PARTITION, OFFSET, VALUE, KEY, HEADERS, TIMESTAMP

cdef Accessors accessors = Accessors(object)


def packs_of(list messages not None, str only_topic=None, int only_partition=-1, size_t largest=0xFFFFFFFF):
    """(topic, partition, RecordPack) of each run of messages of one partition, and the messages that are errors. A pack
    that has reached the size `largest` is not added to.

    A consumer that never had another topic or partition says so: each question not asked saves a call per message.
    """
    global accessors
    cdef list packs = [], errors = []
    cdef RecordPack pack = None
    cdef Accessors of
    cdef str topic = None, name
    cdef tuple written
    cdef bytes value, key
    cdef int64_t offset, timestamp
    cdef int partition = -1, number
    cdef uint32_t key_size, value_size
    cdef const uint8_t* key_data
    cdef uint8_t* place
    if not messages:
        return packs, errors
    if accessors.kind is not type(messages[0]):
        accessors = Accessors(type(messages[0]))
    of = accessors
    for message in messages:
        if of.ask(message, ERROR) is not None:
            errors.append(message)
            continue
        offset = of.ask(message, OFFSET)
        number = only_partition if only_partition >= 0 else of.ask(message, PARTITION)
        name = only_topic if only_topic is not None else of.ask(message, TOPIC)
        if pack is None or number != partition or name != topic or pack._body.end >= largest or (
                offset <= pack.base_offset + pack._span or offset - pack.base_offset > 0x7FFFFFFF):
            topic, partition = name, number
            pack = RecordPack()
            pack.base_offset = offset
            packs.append((topic, partition, pack))
        value, key, headers = of.ask(message, VALUE), of.ask(message, KEY), of.ask(message, HEADERS)
        written = of.ask(message, TIMESTAMP)
        timestamp = written[1]
        if headers:
            pack.append(value, key, [(label, content or b"") for label, content in headers], timestamp, offset)
            continue
        key_data, key_size, value_size = NULL, NO_KEY, NO_VALUE
        if key is not None:
            key_data, key_size = <const uint8_t*> PyBytes_AS_STRING(key), <uint32_t> PyBytes_GET_SIZE(key)
        if value is not None:
            value_size = <uint32_t> PyBytes_GET_SIZE(value)
        place = pack.open_record(timestamp, <uint32_t> (offset - pack.base_offset), key_data, key_size, NULL, 0,
                                 value_size)
        if value is not None:
            memcpy(place, PyBytes_AS_STRING(value), value_size)
    for _, _, done in packs:
        (<RecordPack> done).is_sealed = True
    return packs, errors
