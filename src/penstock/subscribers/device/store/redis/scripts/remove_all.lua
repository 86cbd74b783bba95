-- Forgets a queue.
-- KEYS: messages, last packet id, state, and every other key of the queue        ARGV: key of the total
-- Returns: how many messages there were.
local removed = 0
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
for first = 1, #members, 1000 do
  removed = removed + redis.call('UNLINK', unpack(members, first, math.min(first + 999, #members)))
end
note_total(ARGV[1], -(read_sizes(redis.call('HGET', KEYS[3], 'n')) or 0))
redis.call('UNLINK', unpack(KEYS))
return removed
