# One connection of a Load, from its opening to its end.


cdef int open_client(Load load, Client* c) except -1 nogil:
    cdef epoll_event event
    c.state = CONNECTING
    c.held_size = c.out.start = c.out.end = 0
    c.since = now_ns()
    c.fd = load_connect(
        load.subscriber_address_at if c.is_subscriber else load.address_at, load.address_size, load.family)
    if c.fd < 0:
        c.state = DEAD
        fail_to_connect(load, errno)
    event.events, event.data.ptr = EPOLLIN | EPOLLOUT, c
    c.wants_out = True
    if epoll_ctl(load.epoll_fd, EPOLL_CTL_ADD, c.fd, &event):
        fail(b"epoll takes no more connections")
    load.pending_count += 1
    return 0


cdef int fail_to_connect(Load load, int error) except -1 with gil:
    raise LoadError(f"cannot connect to {load.options.host}:{load.options.port}: {os.strerror(error).lower()}")


cdef int on_connected(Load load, Client* c) except -1 with gil:
    cdef int error = load_socket_error(c.fd)
    if error:
        fail_to_connect(load, error)
    if load.tls is None:
        return send_connect(load, c)
    plain = socket.socket(fileno=c.fd)
    plain.setblocking(False)        # the descriptor is, but the object does not know
    try:
        wrapped = load.tls.wrap_socket(plain, server_hostname=load.options.host, do_handshake_on_connect=False)
    except OSError:
        plain.detach()
        return lose(load, c)
    Py_INCREF(wrapped)
    c.tls = <PyObject*> wrapped
    c.state = HANDSHAKE
    return shake_hands(load, c)


cdef int shake_hands(Load load, Client* c) except -1 with gil:
    try:
        (<object> c.tls).do_handshake()
    except ssl.SSLWantReadError:
        return want_out(load, c, False)
    except ssl.SSLWantWriteError:
        return want_out(load, c, True)
    except ssl.SSLCertVerificationError as error:
        raise LoadError(f"the broker's certificate is not trusted: {error.verify_message}") from None
    except OSError as error:
        raise LoadError(f"no TLS at {load.options.host}:{load.options.port}: {error}") from None
    send_connect(load, c)
    return 0


cdef int send_connect(Load load, Client* c) except -1:
    options = load.options
    stays = load.has_session and c.is_subscriber
    properties = {"session_expiry": SESSION_SECONDS} if stays and load.version == 5 and not options.forget else {}
    put_bytes(load, c, packets.build_connect(
        f"{options.session}{c.index}" if stays
        else f"{options.prefix}-{options.name}-{'s' if c.is_subscriber else 'p'}{c.index}-{c.cycle}",
        version=load.version, clean_start=not stays or options.forget, keep_alive=options.keepalive,
        username=options.username, password=options.password, **properties))
    c.state = WAIT_CONNACK
    flush(load, c)
    return 0


cdef int send_subscribe(Load load, Client* c) except -1:
    options = load.options
    asked = []
    if load.has_queue:
        asked = [("consumer-group", QUEUE_GROUP)]
        if options.start:
            asked.append(("x-stream-offset", options.start))
        if options.prefetch:
            asked.append(("prefetch", str(options.prefetch)))
    put_bytes(load, c, packets.build_subscribe(
        1, [(options.filter_of(c.index), load.qos)], version=load.version, user_properties=asked or None))
    c.state = WAIT_SUBACK
    flush(load, c)
    return 0


cdef int put_bytes(Load load, Client* c, bytes packet) except -1:
    memcpy(buffer_reserve(&c.out, len(packet)), <const uint8_t*> packet, len(packet))
    return 0


cdef int put_packet(Load load, Client* c, int first) except -1 nogil:
    cdef uint8_t* p = buffer_reserve(&c.out, 2)
    p[0], p[1] = <uint8_t> first, 0
    return 0


cdef inline int put_ack(Load load, Client* c, int packet_type, const uint8_t* packet_id) except -1 nogil:
    cdef uint8_t* p = buffer_reserve(&c.out, 4)
    p[0] = <uint8_t> (packet_type << 4 | (2 if packet_type == PUBREL else 0))
    p[1], p[2], p[3] = 2, packet_id[0], packet_id[1]
    return 0


cdef int want_out(Load load, Client* c, bint wanted) noexcept nogil:
    cdef epoll_event event
    if wanted == c.wants_out:
        return 0
    event.events, event.data.ptr = EPOLLIN | (EPOLLOUT if wanted else 0), c
    epoll_ctl(load.epoll_fd, EPOLL_CTL_MOD, c.fd, &event)
    c.wants_out = wanted
    return 0


cdef int flush(Load load, Client* c) except -1 nogil:
    cdef ssize_t k
    while buffer_size(&c.out):
        if c.tls == NULL:
            k = send(c.fd, c.out.data + c.out.start, buffer_size(&c.out), MSG_NOSIGNAL)
        else:
            k = tls_send(load, c)
        if k == -1 and errno == EINTR:
            continue
        if k == TLS_AGAIN or (k == -1 and errno == EAGAIN):
            break
        if k < 0:
            return lose(load, c)
        c.out.start += <uint32_t> k
    if buffer_size(&c.out):
        return want_out(load, c, True)
    c.out.start = c.out.end = 0
    if load.keeps_no_buffer:
        buffer_free(&c.out)
    return want_out(load, c, False)


cdef ssize_t tls_send(Load load, Client* c) except? -4 with gil:
    try:
        return (<object> c.tls).send(
            PyMemoryView_FromMemory(<char*> c.out.data + c.out.start, buffer_size(&c.out), 0x100))
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return TLS_AGAIN
    except OSError:
        return TLS_BROKEN


# As recv, as much as there is: what OpenSSL has decrypted already is not announced by epoll.
cdef ssize_t tls_receive(Load load, Client* c, uint32_t at) except? -4 with gil:
    cdef ssize_t total = 0, k
    try:
        while at + total < READ_MAX:
            k = (<object> c.tls).recv_into(load.tls_view[at + total:])
            if k <= 0:
                break
            total += k
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return total or TLS_AGAIN
    except OSError:
        return total
    return total


cdef void hang_up(Load load, Client* c) noexcept with gil:
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


cdef int lose(Load load, Client* c) except -1 nogil:
    if c.state == DEAD or load.phase == DONE:
        return 0
    if load.scenario != STORM and c.state != READY:
        fail_by_close(load, c)
    hang_up(load, c)
    load.total.disconnects += 1
    return 0


cdef int fail_by_close(Load load, Client* c) except -1 with gil:
    raise LoadError(f"the broker closed a connection while {STATE_NAMES[c.state]}")


cdef int become_ready(Load load, Client* c, uint64_t now) except -1 nogil:
    c.state = READY
    load.pending_count -= 1
    load.ready_count += 1
    load.total.connects += 1
    if load.scenario != STORM:
        return 0
    if load.is_measuring:
        load.total.measured += 1
        histogram_record(load.latency, now - c.since)
    if load.is_abrupt and c.tls == NULL:
        load_reset(c.fd)
        c.state = DEAD
        return 0
    # The broker closes first, so no port of ours is left in TIME_WAIT and the whole cycle is in the measurement.
    put_packet(load, c, DISCONNECT << 4)
    c.since = now
    c.state = CLOSING
    return 0

# ---- what arrives ----


cdef int on_connack(Load load, Client* c, bytes body, uint64_t now) except -1:
    connack = packets.parse_connack(body, load.version)
    options = load.options
    if connack.reason:
        raise LoadRefused(connack)
    limits = connack.properties
    if load.qos > limits.get("maximum_qos", 2):
        raise LoadError(f"the broker takes QoS {int(limits['maximum_qos'])} at most, not {load.qos}")
    if load.publisher_count and load.publishers[0].pattern_size > limits.get("maximum_packet_size", UINT32_MAX):
        raise LoadError(f"the broker takes packets of {limits['maximum_packet_size']} bytes at most")
    load.window = min(load.window, limits.get("receive_maximum", 65535))
    load.keep_alive = min(load.keep_alive, limits.get("server_keep_alive", 65535))
    subscribes = load.subscribes if load.scenario in (IDLE, STORM) else c.is_subscriber
    if load.part == RECEIVE_PART and load.has_session:
        if not connack.session_present:
            raise LoadError(f"the session of {options.session}{c.index} is gone")
        subscribes = False
    if subscribes and not options.forget:
        send_subscribe(load, c)
    else:
        become_ready(load, c, now)
    return 0


cdef int on_suback(Load load, Client* c, bytes body, uint64_t now) except -1:
    (code,) = packets.parse_suback(body, load.version).reasons
    if code >= FIRST_ERROR_CODE:
        raise LoadError(f"the broker refuses the subscription to {load.options.filter_of(c.index)} (code {code})")
    if code < load.qos:
        raise LoadError(f"the broker grants QoS {code} instead of {load.qos}")
    become_ready(load, c, now)
    return 0


cdef int on_publish(Load load, Client* c, int first, const uint8_t* p, const uint8_t* end,
                    uint64_t now) except -1 nogil:
    cdef int qos = first >> 1 & 3, k
    cdef uint32_t properties = 0
    p += 2 + get_be16(p)
    if qos:
        put_ack(load, c, PUBACK if qos == 1 else PUBREC, p)
        p += 2
    if load.version == 5:
        k = get_varint(p, end, &properties)
        p += k
        if k <= 0 or end - p < <int64_t> properties:
            load.total.corrupt += 1
            return 0
        if load.settle >= 0 and not settle_delivery(load, c, p, p + properties):
            load.total.corrupt += 1
        p += properties
    load.total.downgraded += qos < load.qos
    if end - p == <int64_t> load.size:
        count_arrival(load, c, p, now)
    else:
        load.total.corrupt += 1
    return 0


cdef inline void count_arrival(Load load, Client* subscriber, const uint8_t* payload, uint64_t now) noexcept nogil:
    cdef uint64_t stamp
    cdef uint32_t publisher, seq
    cdef int how
    memcpy(&stamp, payload, 8)
    memcpy(&publisher, payload + 8, 4)
    memcpy(&seq, payload + 12, 4)
    if publisher >= <uint32_t> load.publisher_count or (
            load.size > STAMP_SIZE and payload[load.size - 1] != c"x"):
        load.total.corrupt += 1
        return
    how = stream_arrive(
        subscriber.arrivals if load.scenario == FANOUT else load.publishers[publisher].arrivals, seq)
    load.total.received += 1
    load.last_progress = now
    if how == ARRIVED_TWICE:
        load.total.twice += 1
    elif how == ARRIVED_LATE and load.in_order:
        load.total.late += 1
    if load.is_measuring:
        load.total.measured += 1
        subscriber.received += 1
        histogram_record(load.latency, now - stamp if now > stamp else 0)


cdef int count_ack(Load load, Client* c, uint64_t now) except -1 nogil:
    c.acked += 1
    if c.is_subscriber:
        load.settlements_open -= 1
        return settle_waiting(load, c)
    if load.scenario == PUBLISH_ONLY or load.part == PUBLISH_PART:
        load.total.received += 1
        load.total.measured += load.is_measuring
        load.last_progress = now
    return 0


cdef int on_packet(Load load, Client* c, int first, const uint8_t* body, const uint8_t* end,
                   uint64_t now) except -1 nogil:
    cdef int kind = first >> 4
    cdef bint is_refused = end - body > 2 and body[2] >= FIRST_ERROR_CODE
    if kind == PUBLISH:
        return on_publish(load, c, first, body, end, now)
    if kind == PUBACK or kind == PUBCOMP:
        load.total.refused += is_refused
        return count_ack(load, c, now)
    if kind == PUBREC:
        if not is_refused:
            return put_ack(load, c, PUBREL, body)
        c.acked += 1
        load.total.refused += 1
    elif kind == PUBREL:
        return put_ack(load, c, PUBCOMP, body)
    elif kind == DISCONNECT:
        return lose(load, c)
    elif kind == CONNACK or kind == SUBACK:
        return on_answer(load, c, kind, body, <uint32_t> (end - body), now)
    return 0


cdef int on_answer(Load load, Client* c, int kind, const uint8_t* body, uint32_t size, uint64_t now) except -1 with gil:
    try:
        if kind == CONNACK:
            return on_connack(load, c, body[:size], now)
        return on_suback(load, c, body[:size], now)
    except (packets.ProtocolViolation, ValueError) as error:
        raise LoadError(f"what answers there does not speak MQTT as expected: {error}") from None


cdef int keep_incomplete(Load load, Client* c, const uint8_t* rest, uint32_t size) except -1 nogil:
    cdef uint8_t* held
    if size == READ_MAX:
        fail(b"the broker sent a packet larger than 1 MiB")
    if size:
        held = <uint8_t*> realloc(c.held, size)
        if held == NULL:
            fail(b"out of memory")
        c.held = held
        memcpy(held, rest, size)
    c.held_size = size
    return 0


cdef int on_readable(Load load, Client* c) except -1 nogil:
    cdef ssize_t k
    cdef uint64_t now
    cdef uint32_t size = 0
    cdef int head
    cdef const uint8_t* p = load.read_buffer
    cdef const uint8_t* end
    if c.held_size:
        memcpy(load.read_buffer, c.held, c.held_size)
    if c.tls == NULL:
        k = recv(c.fd, load.read_buffer + c.held_size, READ_MAX - c.held_size, 0)
    else:
        k = tls_receive(load, c, c.held_size)
    if k == TLS_AGAIN or (k == -1 and (errno == EAGAIN or errno == EINTR)):
        return 0
    if k <= 0:
        if c.state != CLOSING:
            return lose(load, c)
        hang_up(load, c)
        return 0
    now = now_ns()
    end = p + c.held_size + k
    while c.state != DEAD and end - p >= 2:
        head = get_varint(p + 1, end, &size)
        if head < 0:
            fail(b"what answers there does not speak MQTT")
        if head == 0 or end - p - 1 - head < <int64_t> size:
            break
        on_packet(load, c, p[0], p + 1 + head, p + 1 + head + size, now)
        p += 1 + head + size
    if c.state == DEAD:
        return 0
    keep_incomplete(load, c, p, <uint32_t> (end - p))
    if buffer_size(&c.out) and not c.wants_out:
        flush(load, c)
    return 0


cdef int wait_events(Load load, uint64_t ns) except -1 nogil:
    cdef epoll_event[EVENTS] events
    cdef int i, count = load_wait(load.epoll_fd, events, EVENTS, ns)
    cdef Client* c
    for i in range(count):
        c = <Client*> events[i].data.ptr
        if c.state == HANDSHAKE:
            shake_hands(load, c)
            continue
        if c.state != DEAD and events[i].events & EPOLLOUT:
            if c.state == CONNECTING:
                on_connected(load, c)
            else:
                flush(load, c)
        if c.state not in (DEAD, CONNECTING, HANDSHAKE) and events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP):
            on_readable(load, c)
    if load.scenario == FANOUT:
        find_slowest_subscriber(load)
    return 0


cdef void find_slowest_subscriber(Load load) noexcept nogil:
    cdef int i
    load.fan_min = UINT64_MAX
    for i in range(load.subscriber_count):
        if load.clients[i].state == READY and load.clients[i].arrivals.next < load.fan_min:
            load.fan_min = load.clients[i].arrivals.next
