-- Adds one message to each of several queues, where nothing special is about it; where there is, `add` has to do it.
-- Not for a cluster: the queues have different slots.
-- KEYS: messages, last packet id and state of each queue
-- ARGV: limit, now (ms), default expiry (ms), then source and value for each queue
-- Returns: the packet id for each queue, 0 = `add` has to do it.
local COUNTERS = '<i8i8i8H'
local limit, now = tonumber(ARGV[1]), tonumber(ARGV[2])
local call, format = redis.call, string.format
local ids = {}

for n = 1, #KEYS / 3 do
  local messages, last, state = KEYS[3 * n - 2], KEYS[3 * n - 1], KEYS[3 * n]
  local source, value = ARGV[2 * n + 2], ARGV[2 * n + 3]
  local mark_field = string.sub(source, 1, 16)
  local known = call('HMGET', state, 'c', mark_field)
  local score, base, generation, last_id
  if known[1] then
    score, base, generation, last_id = struct.unpack(COUNTERS, known[1])
  elseif call('EXISTS', messages, last) == 0 then
    score, base, generation, last_id = 0, 0, 0, 0
  end
  ids[n] = 0
  if score and not known[2] and generation == 0 and score - base < limit and score < limit then
    local expires, id = struct.unpack('<i8H', source, 17)
    if id == 0 and (expires == 0 or expires > now) then
      id, score = last_id % 65535 + 1, score + 1
      local text = format('%d', id)
      local key = messages .. '_' .. text
      expires = expires == 0 and ARGV[3] or format('%d', math.min(expires, now + 2147483647000))
      if call('SET', key, value, 'NX', 'PXAT', expires) then
        call('ZADD', messages, format('%d', score), key)
        call('SET', last, text)
        local counters = struct.pack(COUNTERS, score, base, generation, id)
        call('HSET', state, 'c', counters, mark_field, format('%d', score * 65536 + id))
        ids[n] = id
      end
    end
  end
end
return ids
