-- Takes messages that were claimed, and that the member has now, out of a group.
-- KEYS: messages, sources, claims        ARGV: key of the total, packet id and score of each
-- Returns: how many there were.
local ids, keys = {}, {}
for i = 2, #ARGV, 2 do
  local key = KEYS[1] .. '_' .. ARGV[i]
  local score = redis.call('ZSCORE', KEYS[1], key)
  -- The packet id may be another message's since somebody else settled this claim.
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    ids[#ids + 1], keys[#keys + 1] = ARGV[i], key
  end
end
if #keys == 0 then
  return 0
end
local known = look_before_removal(KEYS[1], ARGV[1], keys)
redis.call('ZREM', KEYS[1], unpack(keys))
redis.call('UNLINK', unpack(keys))
redis.call('HDEL', KEYS[2], unpack(ids))
redis.call('HDEL', KEYS[3], unpack(ids))
note_removed(ARGV[1], known, #keys)
return #keys
