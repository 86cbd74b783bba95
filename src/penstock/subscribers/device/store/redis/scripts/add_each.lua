-- Adds one message to each of several queues, where nothing special is about it; where there is, `add` has to do it.
-- Not for a cluster: the queues have different slots.
-- KEYS: messages, last packet id, state and marks of each queue
-- ARGV: limit, now (ms), default expiry (ms), limit of bytes, limit of bytes of all queues (0 = none, each), key of the
--   total, then identity, expiry (ms; 0 = none) and value for each queue
-- Returns: the packet id for each queue, 0 = `add` has to do it.
local COUNTERS = '<i8i8i8i8H'
local limit, now = tonumber(ARGV[1]), tonumber(ARGV[2])
local call, format, sub = redis.call, string.format, string.sub
local bytes_limit, total_limit, total_key = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local is_sized = bytes_limit > 0 or total_limit > 0
local total = total_limit > 0 and tonumber(call('GET', total_key) or 0) or 0
local ids, added = {}, 0

for n = 1, #KEYS / 4 do
  local messages, last, state, marks = KEYS[4 * n - 3], KEYS[4 * n - 2], KEYS[4 * n - 1], KEYS[4 * n]
  local identity, expires, value = ARGV[3 * n + 4], ARGV[3 * n + 5], ARGV[3 * n + 6]
  local place = sub(identity, 9, 16)
  local newest = call('HMGET', state, 'n', place)
  local score, base, marks_after, older_after, last_id
  if newest[1] then
    score, base, marks_after, older_after, last_id = struct.unpack(COUNTERS, newest[1])
  elseif call('EXISTS', messages, last, marks) == 0 then
    score, base, marks_after, older_after, last_id = 0, 0, 0, 0, 0
  end
  local bytes, counted, look_at = read_sizes(newest[1])
  if not newest[1] then
    bytes, counted, look_at = 0, 0, NEVER
  end
  local has_room = not is_sized and not bytes
  if is_sized and bytes then
    has_room = (bytes_limit == 0 or bytes + #value <= bytes_limit)
      and (total_limit == 0 or total + added + #value <= total_limit)
  end
  ids[n] = 0
  local is_new = not newest[2] or struct.unpack('<i8', newest[2]) < struct.unpack('<i8', identity)
  if score and is_new and has_room and score - base < limit and score - marks_after < limit then
    if expires == '0' then
      expires = ARGV[3]
    elseif tonumber(expires) > now then
      expires = format('%d', math.min(tonumber(expires), now + 2147483647000))
    else
      expires = nil
    end
    local id = last_id % 65535 + 1
    local text = format('%d', id)
    local key = messages .. '_' .. text
    if expires and call('SET', key, value, 'NX', 'PXAT', expires) then
      score = score + 1
      call('ZADD', messages, format('%d', score), key)
      call('SET', last, text)
      local counters = struct.pack(COUNTERS, score, base, marks_after, older_after, id)
      if is_sized then
        look_at = math.min(look_at, tonumber(expires))
        counters = counters .. struct.pack(SIZES, bytes + #value, counted + 1, look_at)
        added = added + #value
      end
      call('HSET', state, 'n', counters, place, sub(identity, 1, 8))
      call('APPEND', marks, identity)
      ids[n] = id
    end
  end
end
note_total(total_key, added)
return ids
