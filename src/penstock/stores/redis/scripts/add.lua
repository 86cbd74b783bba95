-- Adds messages to a queue.
-- KEYS: messages, last packet id, state; of a group also its sources
-- ARGV: limit, now (ms), default expiry (ms), packet ids in flight (16 bits each), then source and value of each message
-- Returns: how many older messages gave way, then a packet id for each message: 0 = not stored, -1 = none is free.
--
-- The state is a hash: `c` has the counters (highest score, lower bound of score - stored messages, score at which this
-- generation of marks began, last packet id), and each source that was added has a mark, score * 65536 + packet id. When
-- a generation has as many marks as the limit it replaces the one before, so marks are bounded without being looked
-- through. That key is not declared, because most queues have none, and while a slot is moved a cluster refuses scripts
-- that name keys it cannot find. Numbers are given to Redis as texts, because it writes them out much slower than '%d' does.
local COUNTERS = '<i8i8i8H'
local messages, sources_key = KEYS[1], KEYS[4]
local older_state = KEYS[3] .. '_old'
local limit, now = tonumber(ARGV[1]), tonumber(ARGV[2])
local prefix = messages .. '_'
local first = 5
local format, sub = string.format, string.sub

local fields = { 'c' }
for i = first, #ARGV, 2 do
  fields[#fields + 1] = sub(ARGV[i], 1, 16)
end
local known = redis.call('HMGET', KEYS[3], unpack(fields))
local score, base, generation, last_id
if known[1] then
  score, base, generation, last_id = struct.unpack(COUNTERS, known[1])
else
  local newest = redis.call('ZREVRANGE', messages, 0, 0, 'WITHSCORES')
  last_id = tonumber(redis.call('GET', KEYS[2]) or 0)
  score, generation = tonumber(newest[2] or last_id), 0
  base = score - redis.call('ZCARD', messages)
end

-- By far the most frequent: one message that is new, with room for it and with nothing special about it.
if #ARGV == 6 and not known[2] and score - base < limit and score - generation < limit and ARGV[4] == '' then
  local expires, id = struct.unpack('<i8H', ARGV[5], 17)
  local is_known = generation > 0 and redis.call('HEXISTS', older_state, fields[2]) == 1
  if expires == 0 and id == 0 and not is_known and not sources_key then
    id, score = last_id % 65535 + 1, score + 1
    local text = format('%d', id)
    local key = prefix .. text
    if redis.call('SET', key, ARGV[6], 'NX', 'PXAT', ARGV[3]) then
      redis.call('ZADD', messages, format('%d', score), key)
      redis.call('SET', KEYS[2], text)
      local counters = struct.pack(COUNTERS, score, base, generation, id)
      redis.call('HSET', KEYS[3], 'c', counters, fields[2], format('%d', score * 65536 + id))
      return { 0, id }
    end
    score = score - 1
  end
end

local started_with = last_id
if generation > 0 then
  local older = redis.call('HMGET', older_state, unpack(fields))
  for i = 2, #fields do
    known[i] = known[i] or older[i]
  end
end

-- What has to be stored: neither known nor expired, and not given twice in this call.
local wanted, repeated, seen = {}, {}, {}
for i = 2, #fields do
  local source = ARGV[first + 2 * (i - 2)]
  local expires = struct.unpack('<i8', source, 17)
  if known[i] or seen[fields[i]] then
    repeated[#repeated + 1] = i
  elseif expires == 0 or expires > now then
    wanted[#wanted + 1] = i
    seen[fields[i]] = true
  end
end

local ids, trimmed = {}, 0
for i = 2, #fields do
  ids[i] = 0
end

local passed_over = math.max(0, #wanted - limit)
local new = #wanted - passed_over
if score + new - base > limit then
  local stored = redis.call('ZCARD', messages)
  local surplus = math.min(stored, stored + new - limit)
  while surplus > 0 do
    local oldest = redis.call('ZRANGE', messages, 0, math.min(surplus, 1000) - 1)
    trimmed = trimmed + redis.call('UNLINK', unpack(oldest))
    redis.call('ZREMRANGEBYRANK', messages, 0, #oldest - 1)
    if sources_key then
      for i, member in ipairs(oldest) do
        oldest[i] = string.sub(member, #prefix + 1)
      end
      redis.call('HDEL', sources_key, unpack(oldest))
    end
    surplus, stored = surplus - #oldest, stored - #oldest
  end
  base = score - stored
end
trimmed = trimmed + passed_over

local in_flight
local function is_in_flight(id)
  if ARGV[4] == '' then
    return false
  end
  if not in_flight then
    in_flight = {}
    for at = 1, #ARGV[4], 2 do
      in_flight[struct.unpack('<H', ARGV[4], at)] = true
    end
  end
  return in_flight[id]
end

-- Stores a message under the packet id it has, or under the next that is free.
local function store(value, expires, id)
  local key = prefix .. format('%d', id)
  if id ~= 0 and redis.call('SET', key, value, 'NX', 'PXAT', expires) then
    return id, key
  end
  for _ = 1, 65535 do
    last_id = last_id % 65535 + 1
    key = prefix .. format('%d', last_id)
    if not is_in_flight(last_id) and redis.call('SET', key, value, 'NX', 'PXAT', expires) then
      return last_id, key
    end
  end
  return -1
end

local marks, members, sources = { 'c', '' }, {}, {}
for n = passed_over + 1, #wanted do
  local i = wanted[n]
  local at = first + 2 * (i - 2)
  local expires, id = struct.unpack('<i8H', ARGV[at], 17)
  if expires == 0 then
    expires = ARGV[3]
  else
    expires = format('%d', math.min(expires, now + 2147483647000))
  end
  local key
  id, key = store(ARGV[at + 1], expires, id)
  ids[i] = id
  if id < 0 then
    break
  end
  score = score + 1
  members[#members + 1] = format('%d', score)
  members[#members + 1] = key
  known[i] = format('%d', score * 65536 + id)
  marks[#marks + 1] = fields[i]
  marks[#marks + 1] = known[i]
  if sources_key then
    sources[#sources + 1] = id
    sources[#sources + 1] = ARGV[at]
  end
end

for _, i in ipairs(repeated) do
  local mark = known[i]
  for j = 2, mark and 1 or i - 1 do
    mark = mark or (fields[j] == fields[i] and known[j])
  end
  if mark then
    local id = tonumber(mark) % 65536
    local stored_as = redis.call('ZSCORE', messages, prefix .. id)
    local is_new = members[1] and (tonumber(mark) - id) / 65536 >= tonumber(members[1])
    if is_new or (stored_as and tonumber(stored_as) == (tonumber(mark) - id) / 65536) then
      ids[i] = id
    end
  end
end

if #members > 0 then
  redis.call('ZADD', messages, unpack(members))
  if last_id ~= started_with then
    redis.call('SET', KEYS[2], format('%d', last_id))
  end
  if sources_key then
    redis.call('HSET', sources_key, unpack(sources))
  end
  if score - generation > limit then
    if redis.call('EXISTS', KEYS[3]) == 1 then
      redis.call('RENAME', KEYS[3], older_state)
    end
    generation = score
  end
  marks[2] = struct.pack(COUNTERS, score, base, generation, last_id)
  redis.call('HSET', KEYS[3], unpack(marks))
elseif trimmed > 0 then
  redis.call('HSET', KEYS[3], 'c', struct.pack(COUNTERS, score, base, generation, last_id))
end

local answer = { trimmed }
for i = 2, #fields do
  answer[i] = ids[i]
end
return answer
