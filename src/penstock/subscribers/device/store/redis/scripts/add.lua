-- Adds messages to a queue.
-- KEYS: messages, last packet id, state, marks; of a group also its sources
-- ARGV: limit, now (ms), default expiry (ms), limit of bytes, limit of bytes of all queues (0 = none, each), key of the
--   total, packet ids in flight (16 bits each), places, identities, details, then the value of each message. An identity is offset, partition and via (8, 4 and 4 bytes). Places begin with 1 if offsets
--   grow; each is partition and via, then the lowest and the highest offset that come from there. Details are expiry (8
--   bytes) and packet id (2) of each message; none = no message has either.
-- Returns: how many older messages gave way, 1 if there are too few packet ids, and how packet ids were given: the first
--   and how many there are from it on (16 bits each), again and again; from 0 on = so many were not stored.
--
-- The state is a hash: `n` has the counters (highest score, lower bound of score - stored messages, scores after which
-- the marks and the older marks begin, last packet id; sizes.lua adds the bytes), and each place has the highest offset that came from there: what
-- is higher is new. Marks are the identities of what was added, one for each score; when there are as many as the limit
-- they replace those before them, so they are bounded without being looked through. The key of the older ones is not
-- declared, because most queues have none, and while a slot is moved a cluster refuses scripts that name keys it cannot
-- find. Numbers are given to Redis as texts, because it writes them out much slower than '%d' does.
local COUNTERS = '<i8i8i8i8H'
local FIRST = 10
local messages, marks, sources_key = KEYS[1], KEYS[4], KEYS[5]
local older_marks = marks .. '_old'
local limit, now = tonumber(ARGV[1]), tonumber(ARGV[2])
local bytes_limit, total_limit, total_key = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local flying, places, identities, details = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local is_sized = bytes_limit > 0 or total_limit > 0
local count = #ARGV - FIRST
local prefix = messages .. '_'
local call, format, sub, unpack_struct = redis.call, string.format, string.sub, struct.unpack

local fields = { 'n' }
for at = 2, #places, 24 do
  fields[#fields + 1] = sub(places, at, at + 7)
end
local newest = call('HMGET', KEYS[3], unpack(fields))
local score, base, marks_after, older_after, last_id
if newest[1] then
  score, base, marks_after, older_after, last_id = unpack_struct(COUNTERS, newest[1])
else
  local last = call('ZREVRANGE', messages, 0, 0, 'WITHSCORES')
  last_id = tonumber(call('GET', KEYS[2]) or 0)
  score = tonumber(last[2] or last_id)
  base, marks_after, older_after = score - call('ZCARD', messages), score, score
  call('UNLINK', marks)
end
local started_with, last_score = last_id, score

-- Bytes of the queue as the total has them, how many messages these are, and when the first of them may have expired.
local had_bytes, counted, look_at = read_sizes(newest[1])
local bytes, total = had_bytes, 0
if is_sized and not bytes then
  bytes, counted, look_at = weigh(messages, now)
end
if total_limit > 0 then
  total = tonumber(call('GET', total_key) or 0) + bytes - (had_bytes or 0)
end

-- How many bytes all values from the first on have.
local function size_from(first)
  local size = 0
  for i = FIRST + first, #ARGV do
    size = size + #ARGV[i]
  end
  return size
end

-- Returns how many bytes exceed the limits if these are added.
local function find_surplus(size)
  local surplus = bytes_limit > 0 and bytes + size - bytes_limit or 0
  return total_limit > 0 and math.max(surplus, total + size - total_limit) or surplus
end

local function note(size, count, expires)
  bytes, total, counted = bytes + size, total + size, counted + count
  look_at = math.min(look_at, expires)
end

local is_new = sub(places, 1, 1) == '1'
for i = 2, #fields do
  local at = 24 * i - 46
  if newest[i] then
    local offset = unpack_struct('<i8', newest[i])
    is_new = is_new and offset < unpack_struct('<i8', places, at + 8)
    newest[i] = offset < unpack_struct('<i8', places, at + 16) and sub(places, at + 16, at + 23) or newest[i]
  else
    newest[i] = sub(places, at + 16, at + 23)
  end
end

-- How packet ids were given.
local given, run_first, run_count = {}, 0, 0
local function tell(id)
  if run_count > 0 and id == (run_first == 0 and 0 or run_first + run_count) then
    run_count = run_count + 1
    return
  end
  if run_count > 0 then
    given[#given + 1] = struct.pack('<HH', run_first, run_count)
  end
  run_first, run_count = id, 1
end

-- Stores a message under the next packet id that is free.
local function store(value, expires, in_flight)
  for _ = 1, 65535 do
    last_id = last_id % 65535 + 1
    local key = prefix .. format('%d', last_id)
    if not (in_flight and in_flight[last_id]) and call('SET', key, value, 'NX', 'PXAT', expires) then
      return last_id, key
    end
  end
end

local members, marked, trimmed, is_full = {}, identities, 0, 0

local size = is_sized and size_from(1) or 0
if is_new and details == '' and flying == '' and not sources_key and score + count - base <= limit
  and (not is_sized or find_surplus(size) <= 0) then
  -- By far the most frequent: there is room for all of them, and nothing is special about any.
  local expires = ARGV[3]
  for n = 1, count do
    local id = last_id % 65535 + 1
    local key = prefix .. format('%d', id)
    if call('SET', key, ARGV[FIRST + n], 'NX', 'PXAT', expires) then
      last_id = id
    else
      id, key = store(ARGV[FIRST + n], expires)
    end
    if not id then
      is_full, marked = 1, sub(identities, 1, 16 * n - 16)
      size = size - (is_sized and size_from(n) or 0)
      for _ = n, count do
        tell(0)
      end
      break
    end
    score = score + 1
    members[2 * n - 1], members[2 * n] = format('%d', score), key
    if run_count > 0 and id == run_first + run_count then
      run_count = run_count + 1
    else
      tell(id)
    end
  end
  if is_sized then
    note(size, #members / 2, tonumber(expires))
  end
else
  local newer, older = '', ''
  if not is_new and older_after < marks_after then
    -- Together: one of them alone that is elsewhere, because its slot is moved, would be taken for one that never was.
    newer, older = unpack(call('MGET', marks, older_marks))
  elseif not is_new then
    newer = call('GET', marks)
  end

  -- The score that a message got when it was added; nil = it never was.
  local function find_mark(identity)
    for _, part in ipairs({ { newer or '', marks_after }, { older or '', older_after } }) do
      local at = 0
      repeat
        at = string.find(part[1], identity, at + 1, true)
        if at and at % 16 == 1 then
          return part[2] + (at + 15) / 16
        end
      until not at
    end
  end

  -- What has to be stored: neither known nor expired, and not given twice in this call.
  local wanted, seen, scores, ids = {}, {}, {}, {}
  for i = 1, count do
    local identity = sub(identities, 16 * i - 15, 16 * i)
    local expires = details == '' and 0 or unpack_struct('<i8', details, 10 * i - 9)
    ids[i] = 0
    scores[i] = not is_new and find_mark(identity)
    if scores[i] then
      ids[i] = nil
    elseif not seen[identity] and (expires == 0 or expires > now) then
      wanted[#wanted + 1] = i
      seen[identity] = i
    end
  end

  local passed_over = math.max(0, #wanted - limit)
  if is_sized then
    size = 0
    for n = passed_over + 1, #wanted do
      size = size + #ARGV[FIRST + wanted[n]]
    end
    if find_surplus(size) > 0 and (now >= look_at or call('ZCARD', messages) ~= counted) then
      local before = bytes
      bytes, counted, look_at = weigh(messages, now)
      total = total + bytes - before
    end
    -- The first of them have no room, even if everything else of the queue goes.
    while passed_over < #wanted and find_surplus(size) > bytes do
      passed_over = passed_over + 1
      size = size - #ARGV[FIRST + wanted[passed_over]]
    end
  end
  local new = #wanted - passed_over

  -- Removes the oldest messages.
  local function remove(oldest)
    if is_sized then
      ensure_here(messages, oldest)
      note(-size_of(oldest), -#oldest, look_at)
    end
    trimmed = trimmed + call('UNLINK', unpack(oldest))
    call('ZREMRANGEBYRANK', messages, 0, #oldest - 1)
    if sources_key then
      for i, member in ipairs(oldest) do
        oldest[i] = sub(member, #prefix + 1)
      end
      call('HDEL', sources_key, unpack(oldest))
    end
    base = base + #oldest
  end

  if score + new - base > limit then
    local stored = call('ZCARD', messages)
    local surplus = math.min(stored, stored + new - limit)
    while surplus > 0 do
      local oldest = call('ZRANGE', messages, 0, math.min(surplus, 1000) - 1)
      remove(oldest)
      surplus, stored = surplus - #oldest, stored - #oldest
    end
    base = score - stored
  end
  while new > 0 and is_sized and find_surplus(size) > 0 do
    local surplus, oldest = find_surplus(size), {}
    for i, member in ipairs(call('ZRANGE', messages, 0, 99)) do
      if surplus <= 0 then
        break
      end
      oldest[i] = member
      surplus = surplus - redis.call('STRLEN', member)
    end
    if #oldest == 0 then
      break
    end
    remove(oldest)
  end
  trimmed = trimmed + passed_over

  local in_flight = {}
  for at = 1, #flying, 2 do
    in_flight[unpack_struct('<H', flying, at)] = true
  end

  local stored, sources = {}, {}
  for n = passed_over + 1, #wanted do
    local i = wanted[n]
    local expires, id, key = 0, 0, nil
    if details ~= '' then
      expires, id = unpack_struct('<i8H', details, 10 * i - 9)
    end
    expires = expires == 0 and ARGV[3] or format('%d', math.min(expires, now + 2147483647000))
    key = prefix .. format('%d', id)
    if id == 0 or not call('SET', key, ARGV[FIRST + i], 'NX', 'PXAT', expires) then
      id, key = store(ARGV[FIRST + i], expires, in_flight)
    elseif (id - last_id) % 65535 < 32767 then
      last_id = id -- it was sent with the next one, or one further on
    end
    if not id then
      is_full = 1
      break
    end
    if is_sized then
      note(#ARGV[FIRST + i], 1, tonumber(expires))
    end
    ids[i], score = id, score + 1
    members[#members + 1] = format('%d', score)
    members[#members + 1] = key
    stored[#stored + 1] = sub(identities, 16 * i - 15, 16 * i)
    if sources_key then
      sources[#sources + 1] = id
      sources[#sources + 1] = stored[#stored]
    end
  end
  marked = table.concat(stored)
  if #sources > 0 then
    call('HSET', sources_key, unpack(sources))
  end

  for i = 1, count do
    if scores[i] then
      local member = call('ZRANGEBYSCORE', messages, format('%d', scores[i]), format('%d', scores[i]))[1]
      tell(member and tonumber(sub(member, #prefix + 1)) or 0)
    else
      tell(ids[seen[sub(identities, 16 * i - 15, 16 * i)] or i])
    end
  end
end
given[#given + 1] = struct.pack('<HH', run_first, run_count)

if #members > 0 then
  call('ZADD', messages, unpack(members))
  if last_id ~= started_with then
    call('SET', KEYS[2], format('%d', last_id))
  end
  if score - marks_after > limit and last_score > marks_after then
    call('RENAME', marks, older_marks)
    older_after, marks_after = marks_after, last_score
  end
  call('APPEND', marks, marked)
end
if #members > 0 or trimmed > 0 then
  local counters = struct.pack(COUNTERS, score, base, marks_after, older_after, last_id)
  if is_sized then
    counters = counters .. struct.pack(SIZES, bytes, counted, look_at)
    note_total(total_key, bytes - (had_bytes or 0))
  else
    note_total(total_key, -(had_bytes or 0))
  end
  local changes = { 'n', counters }
  for i = 2, #fields do
    changes[2 * i - 1], changes[2 * i] = fields[i], newest[i]
  end
  call('HSET', KEYS[3], unpack(changes))
end
return { trimmed, is_full, table.concat(given) }
