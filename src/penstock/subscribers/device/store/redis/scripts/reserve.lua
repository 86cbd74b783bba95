-- Takes the next packet ids of a queue.
-- KEYS: messages, last packet id, state        ARGV: how many, packet ids in flight (16 bits each)
-- Returns: the packet ids; fewer when all others are stored or in flight.
local prefix, wanted = KEYS[1] .. '_', tonumber(ARGV[1])
local in_flight = {}
for at = 1, #ARGV[2], 2 do
  in_flight[struct.unpack('<H', ARGV[2], at)] = true
end
local is_empty = redis.call('EXISTS', KEYS[1]) == 0
local counters = redis.call('HGET', KEYS[3], 'n')
local id = tonumber(redis.call('GET', KEYS[2]) or 0)
local ids = {}
for _ = 1, 65535 do
  id = id % 65535 + 1
  if not in_flight[id] and (is_empty or redis.call('EXISTS', prefix .. id) == 0) then
    ids[#ids + 1] = id
    if #ids == wanted then
      break
    end
  end
end
if #ids > 0 then
  redis.call('SET', KEYS[2], ids[#ids])
  if counters then
    local changed = string.sub(counters, 1, 32) .. struct.pack('<H', ids[#ids]) .. string.sub(counters, 35)
    redis.call('HSET', KEYS[3], 'n', changed)
  end
end
return ids
