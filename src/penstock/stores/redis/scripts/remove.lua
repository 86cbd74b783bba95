-- Removes messages.
-- KEYS: messages; of a group also its sources and its claims        ARGV: packet ids
-- Returns: how many there were.
local keys = {}
for i, id in ipairs(ARGV) do
  keys[i] = KEYS[1] .. '_' .. id
end
local removed = redis.call('ZREM', KEYS[1], unpack(keys))
redis.call('UNLINK', unpack(keys))
if KEYS[2] then
  redis.call('HDEL', KEYS[2], unpack(ARGV))
  redis.call('HDEL', KEYS[3], unpack(ARGV))
end
return removed
