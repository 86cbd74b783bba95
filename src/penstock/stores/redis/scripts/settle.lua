-- Takes messages that were claimed, and that the member has now, out of a group.
-- KEYS: messages, sources, claims        ARGV: packet id and score of each
-- Returns: how many there were.
local removed = 0
for i = 1, #ARGV, 2 do
  local key = KEYS[1] .. '_' .. ARGV[i]
  local score = redis.call('ZSCORE', KEYS[1], key)
  -- The packet id may be another message's since somebody else settled this claim.
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    redis.call('ZREM', KEYS[1], key)
    redis.call('UNLINK', key)
    redis.call('HDEL', KEYS[2], ARGV[i])
    redis.call('HDEL', KEYS[3], ARGV[i])
    removed = removed + 1
  end
end
return removed
