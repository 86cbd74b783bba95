-- Forgets a queue.
-- KEYS: messages, and every other key of the queue
-- Returns: how many messages there were.
local removed = 0
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
for first = 1, #members, 1000 do
  removed = removed + redis.call('UNLINK', unpack(members, first, math.min(first + 999, #members)))
end
redis.call('UNLINK', unpack(KEYS))
return removed
