-- Stands before every script that adds or removes messages: how many bytes a queue has, and all queues together.
-- The counters of a queue (`n` of its state, see add.lua) end with three numbers: the bytes of its messages, how many
-- messages these are, and the time (ms) from which some of them may have expired. Redis removes an expired message
-- without a word, so the bytes are an upper bound: `add` weighs the queue again where they matter, if that time has come
-- or the set has another number of messages. Counters without these numbers are those of an earlier version, or of a
-- broker without limits, and `add` weighs such a queue once. The total is the sum over all queues; its key is empty in a
-- cluster, where a script sees one slot only.
local SIZES, SIZES_AT = '<i8i8i8', 35
local NEVER = 9007199254740991

local function read_sizes(counters)
  if counters and #counters > SIZES_AT then
    return struct.unpack(SIZES, counters, SIZES_AT)
  end
end

local function note_total(key, change)
  if key ~= '' and change ~= 0 and redis.call('INCRBY', key, string.format('%d', change)) <= 0 then
    redis.call('DEL', key)
  end
end

-- Ends the script if a message is not here yet, because its slot is moved: asked for alone it would be taken for one
-- that does not exist.
local function ensure_here(messages, members)
  members[#members + 1] = messages
  redis.call('EXISTS', unpack(members))
  members[#members] = nil
end

-- The bytes of messages that are here.
local function size_of(members)
  local size = 0
  for _, member in ipairs(members) do
    size = size + redis.call('STRLEN', member)
  end
  return size
end

-- Weighs a queue message by message: bytes, how many messages, and when it may be worth the time to do that again: not
-- before the next one expires, and the later the more there are.
local function weigh(messages, now)
  local bytes, count, first = 0, 0, NEVER
  repeat
    local page = redis.call('ZRANGE', messages, count, count + 999)
    ensure_here(messages, page)
    for _, member in ipairs(page) do
      local lives = redis.call('PTTL', member)
      if lives ~= -2 then
        bytes = bytes + redis.call('STRLEN', member)
        first = lives >= 0 and math.min(first, now + lives) or first
      end
    end
    count = count + #page
  until #page < 1000
  return bytes, count, math.max(first, now + count)
end

-- What `note_removed` has to know, before the messages go; nil if the bytes of the queue are not counted. The state is
-- not among the keys, because a cluster that moves the slot refuses scripts that name keys it cannot find.
local function look_before_removal(messages, total_key, members)
  local state = string.sub(messages, 1, -9) .. 'state'
  local counters = redis.call('HGET', state, 'n')
  if read_sizes(counters) then
    if total_key == '' then
      ensure_here(messages, members)
    end
    return { state, counters, size_of(members) }
  end
end

-- So many members have left the set. Where messages had expired before, their bytes are not known: the queue has to be
-- weighed where they matter. An empty queue has none.
local function note_removed(total_key, known, count, had_expired)
  if not known then
    return
  end
  local state, counters = known[1], known[2]
  local bytes, counted, look_at = read_sizes(counters)
  local left = math.max(0, bytes - known[3])
  counted = counted - count
  if counted <= 0 then
    left, counted, look_at = 0, 0, NEVER
  elseif had_expired then
    look_at = 0
  end
  redis.call('HSET', state, 'n', string.sub(counters, 1, SIZES_AT - 1) .. struct.pack(SIZES, left, counted, look_at))
  note_total(total_key, left - bytes)
end

