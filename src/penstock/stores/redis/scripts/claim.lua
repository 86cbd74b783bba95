-- Gives messages of a group to a member: a message that was claimed belongs to who claimed it first, whatever happens.
-- KEYS: messages, sources, claims        ARGV: member, most messages
-- Returns, for each message that is claimed (those that were claimed before come first, and count):
-- packet id, score, who claimed it, source, ms to live, value.
local messages, member, limit = KEYS[1], ARGV[1], tonumber(ARGV[2])
local prefix = #messages + 2
local answer, given = {}, 0

local function give(id, owner)
  local key = messages .. '_' .. id
  local value, score = redis.call('GET', key), redis.call('ZSCORE', messages, key)
  local source = redis.call('HGET', KEYS[2], id)
  if not (value and score and source) then
    redis.call('ZREM', messages, key)
    redis.call('UNLINK', key)
    redis.call('HDEL', KEYS[2], id)
    redis.call('HDEL', KEYS[3], id)
    return
  end
  redis.call('HSET', KEYS[3], id, owner)
  for _, part in ipairs({ id, score, owner, source, redis.call('PTTL', key), value }) do
    answer[#answer + 1] = part
  end
  given = given + 1
end

local claims, claimed = redis.call('HGETALL', KEYS[3]), {}
for i = 1, #claims, 2 do
  claimed[claims[i]] = true
  give(claims[i], claims[i + 1])
end
if given < limit then
  for _, key in ipairs(redis.call('ZRANGE', messages, 0, limit + #claims / 2 - 1)) do
    local id = string.sub(key, prefix)
    if not claimed[id] and given < limit then
      give(id, member)
    end
  end
end
return answer
