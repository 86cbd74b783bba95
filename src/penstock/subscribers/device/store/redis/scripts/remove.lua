-- Removes messages.
-- KEYS: messages; of a group also its sources and its claims        ARGV: key of the total, packet ids
-- Returns: how many there were.
local keys = {}
for i = 2, #ARGV do
  keys[i - 1] = KEYS[1] .. '_' .. ARGV[i]
end
local known = look_before_removal(KEYS[1], ARGV[1], keys)
local removed = redis.call('ZREM', KEYS[1], unpack(keys))
redis.call('UNLINK', unpack(keys))
note_removed(ARGV[1], known, removed)
if KEYS[2] then
  redis.call('HDEL', KEYS[2], unpack(ARGV, 2))
  redis.call('HDEL', KEYS[3], unpack(ARGV, 2))
end
return removed
