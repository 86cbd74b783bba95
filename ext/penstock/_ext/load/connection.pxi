# One connection of a Load, from its opening to its end.


cdef int open_client(Worker worker, Client* c) except -1 nogil:
    cdef epoll_event event
    c.state = CONNECTING
    c.held_size = c.out.start = c.out.end = 0
    c.reads_late = False
    c.since = now_ns()
    c.fd = load_connect(
        worker.subscriber_address_at if c.is_subscriber else worker.address_at, worker.address_size, worker.family)
    if c.fd < 0:
        c.state = DEAD
        fail_to_connect(worker, errno)
    event.events, event.data.ptr = EPOLLIN | EPOLLOUT | EPOLLRDHUP, c
    c.wants_out = True
    if epoll_ctl(worker.epoll_fd, EPOLL_CTL_ADD, c.fd, &event):
        fail(b"epoll takes no more connections")
    worker.pending_count += 1
    return 0


cdef int fail_to_connect(Worker worker, int error) except -1 with gil:
    raise LoadError(f"cannot connect to {worker.options.host}:{worker.options.port}: {os.strerror(error).lower()}")


cdef int on_connected(Worker worker, Client* c) except -1 with gil:
    cdef int error = load_socket_error(c.fd)
    if error:
        fail_to_connect(worker, error)
    if worker.tls is None:
        return send_connect(worker, c)
    plain = socket.socket(fileno=c.fd)
    plain.setblocking(False)        # the descriptor is, but the object does not know
    try:
        wrapped = worker.tls.wrap_socket(plain, server_hostname=worker.options.host, do_handshake_on_connect=False)
    except OSError:
        plain.detach()
        return lose(worker, c)
    Py_INCREF(wrapped)
    c.tls = <PyObject*> wrapped
    c.state = HANDSHAKE
    return shake_hands(worker, c)


cdef int shake_hands(Worker worker, Client* c) except -1 with gil:
    try:
        (<object> c.tls).do_handshake()
    except ssl.SSLWantReadError:
        return want_out(worker, c, False)
    except ssl.SSLWantWriteError:
        return want_out(worker, c, True)
    except ssl.SSLCertVerificationError as error:
        raise LoadError(f"the broker's certificate is not trusted: {error.verify_message}") from None
    except OSError as error:
        raise LoadError(f"no TLS at {worker.options.host}:{worker.options.port}: {error}") from None
    send_connect(worker, c)
    return 0


cdef int send_connect(Worker worker, Client* c) except -1:
    options = worker.options
    stays = worker.has_session and c.is_subscriber
    properties = {"session_expiry": SESSION_SECONDS} if stays and worker.version == 5 and not options.forget else {}
    put_bytes(worker, c, packets.build_connect(
        f"{options.session}{c.index}" if stays
        else f"{options.prefix}-{options.name}-{'s' if c.is_subscriber else 'p'}{c.index}-{c.cycle}",
        version=worker.version, clean_start=not stays or options.forget, keep_alive=options.keepalive,
        username=options.username, password=options.password, **properties))
    c.state = WAIT_CONNACK
    flush(worker, c)
    return 0


cdef int send_subscribe(Worker worker, Client* c) except -1:
    options = worker.options
    asked = []
    if worker.has_queue:
        asked = [("consumer-group", QUEUE_GROUP)]
        if options.start:
            asked.append(("x-stream-offset", options.start))
        if options.prefetch:
            asked.append(("prefetch", str(options.prefetch)))
    put_bytes(worker, c, packets.build_subscribe(
        1, [(options.filter_of(c.index), worker.qos)], version=worker.version, user_properties=asked or None))
    c.state = WAIT_SUBACK
    flush(worker, c)
    return 0


cdef int put_bytes(Worker worker, Client* c, bytes packet) except -1:
    c.prepared = 0
    memcpy(buffer_reserve(&c.out, len(packet)), <const uint8_t*> packet, len(packet))
    return 0


cdef int put_packet(Worker worker, Client* c, int first) except -1 nogil:
    cdef uint8_t* p = buffer_reserve(&c.out, 2)
    c.prepared = 0
    p[0], p[1] = <uint8_t> first, 0
    return 0


cdef inline int put_ack(Worker worker, Client* c, int packet_type, const uint8_t* packet_id) except -1 nogil:
    c.prepared = 0
    set_ack(buffer_reserve(&c.out, 4), packet_type, packet_id)
    return 0


cdef inline uint8_t* set_ack(uint8_t* p, int packet_type, const uint8_t* packet_id) noexcept nogil:
    p[0] = <uint8_t> (packet_type << 4 | (2 if packet_type == PUBREL else 0))
    p[1], p[2], p[3] = 2, packet_id[0], packet_id[1]
    return p + 4


cdef int want_out(Worker worker, Client* c, bint wanted) noexcept nogil:
    if wanted != c.wants_out:
        c.wants_out = wanted
        tell_epoll(worker, c)
    return 0


# Whether what arrives waits until somebody looks.
cdef void read_late(Worker worker, Client* c, bint is_late) noexcept nogil:
    if is_late != c.reads_late and c.state == READY:
        c.reads_late = is_late
        tell_epoll(worker, c)


cdef void tell_epoll(Worker worker, Client* c) noexcept nogil:
    cdef epoll_event event
    event.events, event.data.ptr = EPOLLRDHUP, c
    if not c.reads_late:
        event.events |= EPOLLIN
    if c.wants_out:
        event.events |= EPOLLOUT
    epoll_ctl(worker.epoll_fd, EPOLL_CTL_MOD, c.fd, &event)


cdef int flush(Worker worker, Client* c) except -1 nogil:
    cdef ssize_t k
    while buffer_size(&c.out):
        if c.tls == NULL:
            k = send(c.fd, c.out.data + c.out.start, buffer_size(&c.out), MSG_NOSIGNAL)
        else:
            k = tls_send(worker, c)
        if k == -1 and errno == EINTR:
            continue
        if k == TLS_AGAIN or (k == -1 and errno == EAGAIN):
            break
        if k < 0:
            return lose(worker, c)
        c.out.start += <uint32_t> k
    if buffer_size(&c.out):
        return want_out(worker, c, True)
    c.out.start = c.out.end = 0
    if worker.keeps_no_buffer:
        buffer_free(&c.out)
    elif not c.is_subscriber and worker.spare.data == NULL:
        worker.spare, c.out.data, c.out.capacity = c.out, NULL, 0
        worker.spare_prepared, worker.spare_pattern_size = c.prepared, c.pattern_size
    return want_out(worker, c, False)


cdef ssize_t tls_send(Worker worker, Client* c) except? -4 with gil:
    try:
        return (<object> c.tls).send(
            PyMemoryView_FromMemory(<char*> c.out.data + c.out.start, buffer_size(&c.out), 0x100))
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return TLS_AGAIN
    except OSError:
        return TLS_BROKEN


# As recv, as much as there is: what OpenSSL has decrypted already is not announced by epoll.
cdef ssize_t tls_receive(Worker worker, Client* c, uint32_t at) except? -4 with gil:
    cdef ssize_t total = 0, k
    try:
        while at + total < READ_MAX:
            k = (<object> c.tls).recv_into(worker.tls_view[at + total:])
            if k <= 0:
                break
            total += k
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return total or TLS_AGAIN
    except OSError:
        return total
    return total


cdef void hang_up(Worker worker, Client* c) noexcept with gil:
    if c.fd < 0 or c.state == DEAD:
        return
    c.state = DEAD
    if c.tls != NULL:
        try:
            (<object> c.tls).close()
        except OSError:
            pass
        Py_DECREF(<object> c.tls)
        c.tls = NULL
    else:
        close(c.fd)
    c.fd = -1


cdef int lose(Worker worker, Client* c) except -1 nogil:
    if c.state == DEAD or worker.seat.phase == DONE:
        return 0
    if worker.scenario != STORM and c.state != READY:
        fail_by_close(worker, c)
    hang_up(worker, c)
    worker.seat.total.disconnects += 1
    return 0


cdef int fail_by_close(Worker worker, Client* c) except -1 with gil:
    raise LoadError(f"the broker closed a connection while {STATE_NAMES[c.state]}")


cdef int become_ready(Worker worker, Client* c, uint64_t now) except -1 nogil:
    c.state = READY
    worker.pending_count -= 1
    worker.seat.ready_count += 1
    worker.seat.total.connects += 1
    if worker.scenario != STORM:
        read_late(worker, c, not c.is_subscriber and waits_for_deliveries(worker))
        return 0
    if worker.is_measuring:
        worker.seat.total.measured += 1
        histogram_record(worker.seat.latency, now - c.since, 1)
    if worker.is_abrupt and c.tls == NULL:
        load_reset(c.fd)
        c.state = DEAD
        return 0
    # The broker closes first, so no port of ours is left in TIME_WAIT and the whole cycle is in the measurement.
    put_packet(worker, c, DISCONNECT << 4)
    c.since = now
    c.state = CLOSING
    return 0

# ---- what arrives ----


cdef int on_connack(Worker worker, Client* c, bytes body, uint64_t now) except -1:
    connack = packets.parse_connack(body, worker.version)
    options = worker.options
    if connack.reason:
        raise LoadRefused(connack)
    limits = connack.properties
    if worker.qos > limits.get("maximum_qos", 2):
        raise LoadError(f"the broker takes QoS {int(limits['maximum_qos'])} at most, not {worker.qos}")
    if worker.publisher_count and worker.publishers[0].pattern_size > limits.get("maximum_packet_size", UINT32_MAX):
        raise LoadError(f"the broker takes packets of {limits['maximum_packet_size']} bytes at most")
    worker.window = min(worker.window, limits.get("receive_maximum", 65535))
    worker.keep_alive = min(worker.keep_alive, limits.get("server_keep_alive", 65535))
    subscribes = worker.subscribes if worker.scenario in (IDLE, STORM) else c.is_subscriber
    if worker.part == RECEIVE_PART and worker.has_session:
        if not connack.session_present:
            raise LoadError(f"the session of {options.session}{c.index} is gone")
        subscribes = False
    if subscribes and not options.forget:
        send_subscribe(worker, c)
    else:
        become_ready(worker, c, now)
    return 0


cdef int on_suback(Worker worker, Client* c, bytes body, uint64_t now) except -1:
    (code,) = packets.parse_suback(body, worker.version).reasons
    if code >= FIRST_ERROR_CODE:
        raise LoadError(f"the broker refuses the subscription to {worker.options.filter_of(c.index)} (code {code})")
    if code < worker.qos:
        raise LoadError(f"the broker grants QoS {code} instead of {worker.qos}")
    become_ready(worker, c, now)
    return 0


cdef int on_publish(Worker worker, Client* c, int first, const uint8_t* p, const uint8_t* end,
                    Run* run, uint64_t now) except -1 nogil:
    cdef int qos = first >> 1 & 3, k
    cdef uint32_t properties = 0
    if end - p < 2 or end - p < 2 + <int64_t> get_be16(p) + (2 if qos else 0):
        worker.seat.total.corrupt += 1
        return 0
    p += 2 + get_be16(p)
    if qos:
        put_ack(worker, c, PUBACK if qos == 1 else PUBREC, p)
        p += 2
    if worker.version == 5:
        k = get_varint(p, end, &properties)
        p += k
        if k <= 0 or end - p < <int64_t> properties:
            worker.seat.total.corrupt += 1
            return 0
        if worker.settle >= 0 and not settle_delivery(worker, c, p, p + properties):
            worker.seat.total.corrupt += 1
        p += properties
    worker.seat.total.downgraded += qos < worker.qos
    if end - p == <int64_t> worker.size:
        count_arrival(worker, c, p, run, now)
    else:
        worker.seat.total.corrupt += 1
    return 0


cdef inline void count_arrival(Worker worker, Client* subscriber, const uint8_t* payload, Run* run,
                               uint64_t now) noexcept nogil:
    cdef uint64_t stamp
    cdef uint32_t publisher, seq
    cdef int how
    cdef Arrivals* arrivals
    memcpy(&stamp, payload, 8)
    memcpy(&publisher, payload + 8, 4)
    memcpy(&seq, payload + 12, 4)
    if publisher >= <uint32_t> worker.common.publisher_count or (
            worker.size > STAMP_SIZE and not load_is_filler(payload + STAMP_SIZE, worker.size - STAMP_SIZE)):
        worker.seat.total.corrupt += 1
        return
    if run.count and seq == run.next and publisher == run.publisher and stamp == run.stamp:
        run.next += 1
        run.count += 1
        return
    if not subscriber.is_subscriber or (worker.groups and publisher % worker.groups != subscriber.index):
        worker.seat.total.corrupt += 1      # somebody else's
        return
    note_run(worker, subscriber, run, now)
    arrivals = worker.common.streams[subscriber.index if worker.scenario == FANOUT else publisher]
    if seq == arrivals.next:
        run.arrivals, run.count, run.stamp, run.publisher, run.next = arrivals, 1, stamp, publisher, seq + 1
        return
    how = stream_arrive(arrivals, seq)
    if how == ARRIVED_TWICE:
        worker.seat.total.twice += 1
        worker.seat.total.received += 1     # not measured: it serves nobody
        return
    if how == ARRIVED_LATE and worker.in_order:
        worker.seat.total.late += 1
    count_received(worker, subscriber, 1, stamp, now)


cdef inline void count_received(Worker worker, Client* subscriber, uint64_t count, uint64_t stamp,
                                uint64_t now) noexcept nogil:
    worker.seat.total.received += count
    if worker.is_measuring:
        worker.seat.total.measured += count
        subscriber.received += count
        if worker.part == RECEIVE_PART:
            stamp = subscriber.since    # how long they lay there is the test's own doing
        histogram_record(worker.seat.latency, now - stamp if now > stamp else 0, count)


# Takes the messages from p on that begin as the one before them, a PUBLISH too, and go on with the run: all but what
# changes has been looked at already. Returns where they end.
cdef const uint8_t* follow_run(Worker worker, Client* c, const uint8_t* p, const uint8_t* end, int head, uint32_t body,
                               Run* run) except NULL nogil:
    cdef int64_t size = 1 + head + <int64_t> body, payload_at = size - worker.size
    cdef const uint8_t* first = p - size
    cdef const uint8_t* payload
    cdef uint8_t* answer = NULL
    cdef int qos = first[0] >> 1 & 3, no_properties = 1 if worker.version == 5 else 0
    cdef uint64_t stamp
    cdef uint32_t publisher, seq
    if qos < worker.qos or worker.settle >= 0 or (
            payload_at != 1 + head + 2 + get_be16(first + 1 + head) + (2 if qos else 0) + no_properties):
        return p
    if qos:
        c.prepared = 0
        # Behind the answer to the message before, so there is a buffer even when none follows.
        answer = buffer_reserve(&c.out, <uint32_t> (4 * ((end - p) // size)))
    while end - p >= size and memcmp(p, first, 8) == 0:     # its type, its lengths
        payload = p + payload_at
        memcpy(&stamp, payload, 8)
        memcpy(&publisher, payload + 8, 4)
        memcpy(&seq, payload + 12, 4)
        if seq != run.next or publisher != run.publisher or stamp != run.stamp or (
                no_properties and (payload - 1)[0]) or (
                worker.size > STAMP_SIZE and not load_is_filler(payload + STAMP_SIZE, worker.size - STAMP_SIZE)):
            break
        if qos:
            answer = set_ack(answer, PUBACK if qos == 1 else PUBREC, payload - 2 - no_properties)
        run.next += 1
        run.count += 1
        p += size
    if qos:
        c.out.end = <uint32_t> (answer - c.out.data)
    return p


cdef void note_run(Worker worker, Client* subscriber, Run* run, uint64_t now) noexcept nogil:
    if run.count:
        stream_arrive_in_order(run.arrivals, run.count)
        count_received(worker, subscriber, run.count, run.stamp, now)
        run.count = 0


cdef int count_acks(Worker worker, Client* c, uint64_t count) except -1 nogil:
    c.acked += count
    if c.is_subscriber:
        worker.seat.settlements_open -= count
        return settle_waiting(worker, c)
    if worker.scenario == PUBLISH_ONLY or worker.part == PUBLISH_PART:
        worker.seat.total.received += count
        if worker.is_measuring:
            worker.seat.total.measured += count
    return 0


# Takes the acknowledgements from p on that are as the one before them, four bytes and thus no error: of them only
# their number matters. Returns where they end.
cdef const uint8_t* follow_acks(Worker worker, Client* c, const uint8_t* p, const uint8_t* end) except NULL nogil:
    cdef const uint8_t* first = p - 4
    cdef uint64_t count = 0
    while end - p >= 4 and p[0] == first[0] and p[1] == 2:
        count += 1
        p += 4
    if count:
        count_acks(worker, c, count)
    return p


cdef int on_packet(Worker worker, Client* c, int first, const uint8_t* body, const uint8_t* end,
                   Run* run, uint64_t now) except -1 nogil:
    cdef int kind = first >> 4
    cdef bint is_refused
    if kind == PUBLISH:
        return on_publish(worker, c, first, body, end, run, now)
    if end - body < 2 and PUBACK <= kind <= PUBCOMP:
        worker.seat.total.corrupt += 1      # without a packet id
        return 0
    is_refused = end - body > 2 and body[2] >= FIRST_ERROR_CODE
    if kind == PUBACK or kind == PUBCOMP:
        worker.seat.total.refused += is_refused
        return count_acks(worker, c, 1)
    if kind == PUBREC:
        if not is_refused:
            return put_ack(worker, c, PUBREL, body)
        c.acked += 1
        worker.seat.total.refused += 1
    elif kind == PUBREL:
        return put_ack(worker, c, PUBCOMP, body)
    elif kind == DISCONNECT:
        return lose(worker, c)
    elif kind == CONNACK or kind == SUBACK:
        return on_answer(worker, c, kind, body, <uint32_t> (end - body), now)
    return 0


cdef int on_answer(Worker worker, Client* c, int kind, const uint8_t* body, uint32_t size,
                   uint64_t now) except -1 with gil:
    try:
        if kind == CONNACK:
            return on_connack(worker, c, body[:size], now)
        return on_suback(worker, c, body[:size], now)
    except (packets.ProtocolViolation, ValueError) as error:
        raise LoadError(f"what answers there does not speak MQTT as expected: {error}") from None


cdef int keep_incomplete(Worker worker, Client* c, const uint8_t* rest, uint32_t size) except -1 nogil:
    cdef uint8_t* held
    if size == READ_MAX:
        fail(b"the broker sent a packet larger than 4 MiB")
    if size:
        held = <uint8_t*> realloc(c.held, size)
        if held == NULL:
            fail(b"out of memory")
        c.held = held
        memcpy(held, rest, size)
    c.held_size = size
    return 0


cdef int on_readable(Worker worker, Client* c) except -1 nogil:
    cdef ssize_t k
    cdef uint64_t now, received = worker.seat.total.received
    cdef uint32_t size = 0, room
    cdef int head, kind
    cdef Run run
    cdef const uint8_t* p = worker.read_buffer
    cdef const uint8_t* end
    if c.held_size:
        memcpy(worker.read_buffer, c.held, c.held_size)
    if c.tls == NULL:
        room = READ_MAX - c.held_size
        k = recv(c.fd, worker.read_buffer + c.held_size, room if room < READ_AT_ONCE else READ_AT_ONCE, 0)
    else:
        k = tls_receive(worker, c, c.held_size)
    if k == TLS_AGAIN or (k == -1 and (errno == EAGAIN or errno == EINTR)):
        return 0
    if k <= 0:
        if c.state != CLOSING:
            return lose(worker, c)
        hang_up(worker, c)
        return 0
    now = now_ns()
    end = p + c.held_size + k
    run.count = 0
    while c.state != DEAD and end - p >= 2:
        head, size = 1, p[1]
        if size >= 0x80:
            head = get_varint(p + 1, end, &size)
        if head < 0:
            fail(b"what answers there does not speak MQTT")
        if head == 0 or end - p - 1 - head < <int64_t> size:
            break
        kind = p[0] >> 4
        on_packet(worker, c, p[0], p + 1 + head, p + 1 + head + size, &run, now)
        p += 1 + head + size
        if run.count and kind == PUBLISH:
            p = follow_run(worker, c, p, end, head, size, &run)
        elif size == 2 and (kind == PUBACK or kind == PUBCOMP):
            p = follow_acks(worker, c, p, end)
    note_run(worker, c, &run, now)
    if worker.seat.total.received != received:
        poke(&worker.common.last_progress, now)
        worker.has_news = True
    if c.state == DEAD:
        return 0
    keep_incomplete(worker, c, p, <uint32_t> (end - p))
    if buffer_size(&c.out) and not c.wants_out:
        flush(worker, c)
    return 0


cdef int wait_events(Worker worker, uint64_t ns) except -1 nogil:
    cdef epoll_event[EVENTS] events
    cdef int i, count
    cdef Client* c
    if worker.waits_for_others and ns:
        poke(&worker.seat.is_asleep, 1)
        if peek(&worker.common.arrivals) != worker.news:
            ns = 0          # between the look at the windows and now
    count = load_wait(worker.epoll_fd, events, EVENTS, ns)
    if worker.waits_for_others:
        poke(&worker.seat.is_asleep, 0)
    for i in range(count):
        c = <Client*> events[i].data.ptr
        if c == NULL:
            load_silence(worker.seat.bell)
        elif c.state == HANDSHAKE:
            shake_hands(worker, c)
        else:
            on_event(worker, c, events[i].events)
    if worker.scenario == FANOUT:
        find_slowest_subscriber(worker)
    if worker.has_news:
        tell_others(worker)
    return 0


cdef int on_event(Worker worker, Client* c, uint32_t event) except -1 nogil:
    if c.state != DEAD and event & EPOLLOUT:
        if c.state == CONNECTING:
            on_connected(worker, c)
        else:
            flush(worker, c)
    if c.state not in (DEAD, CONNECTING, HANDSHAKE) and event & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP):
        on_readable(worker, c)
    return 0


# Whose publishers wait for what has arrived here.
cdef void tell_others(Worker worker) noexcept nogil:
    cdef int i
    worker.has_news = False
    if worker.common.size == 1:
        return
    increment(&worker.common.arrivals)
    for i in range(worker.common.size):
        if i != worker.number and take(&worker.common.seats[i].is_asleep):
            load_ring(worker.common.seats[i].bell)


cdef void find_slowest_subscriber(Worker worker) noexcept nogil:
    cdef int i
    cdef uint64_t least = UINT64_MAX
    for i in range(worker.subscriber_count):
        if worker.clients[i].state == READY and worker.clients[i].arrivals.next < least:
            least = worker.clients[i].arrivals.next
    poke(&worker.seat.fan_min, least)
