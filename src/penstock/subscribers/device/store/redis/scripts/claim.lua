-- Gives messages of a group to a member: a message that was claimed belongs to who claimed it first, whatever happens.
-- KEYS: messages, sources, claims        ARGV: key of the total, member and how it gets them, most messages; or 0, and
-- then packet id and score of each message that it is to get
-- Returns: how many had expired, and for each message that is claimed (those that were claimed before come first, and
-- count): packet id, score, who claimed it and how, source, ms to live, value.
local messages, sources_key, claims_key = KEYS[1], KEYS[2], KEYS[3]
local member, limit = ARGV[2], tonumber(ARGV[3])
local prefix = messages .. '_'
local answer, given = { 0 }, 0

-- Messages with these ids are given to those owners; what has expired goes. How many were there.
local function give(ids, owners)
  local keys, gone, before = {}, {}, given
  for i, id in ipairs(ids) do
    keys[i] = prefix .. id
  end
  -- Never a single key: see fetch.
  keys[#keys + 1] = messages
  local values = redis.call('MGET', unpack(keys))
  local sources = redis.call('HMGET', sources_key, unpack(ids))
  for i, id in ipairs(ids) do
    local score = redis.call('ZSCORE', messages, keys[i])
    if values[i] and score and sources[i] then
      redis.call('HSET', claims_key, id, owners[i])
      for _, part in ipairs({ id, score, owners[i], sources[i], redis.call('PTTL', keys[i]), values[i] }) do
        answer[#answer + 1] = part
      end
      given = given + 1
    else
      gone[#gone + 1] = i
    end
  end
  for _, i in ipairs(gone) do
    answer[1] = answer[1] + redis.call('ZREM', messages, keys[i])
    redis.call('UNLINK', keys[i])
    redis.call('HDEL', sources_key, ids[i])
    redis.call('HDEL', claims_key, ids[i])
  end
  return given - before
end

local claims, claimed = redis.call('HGETALL', claims_key), {}
local ids, owners = {}, {}
for i = 1, #claims, 2 do
  claimed[claims[i]] = true
  ids[#ids + 1], owners[#owners + 1] = claims[i], claims[i + 1]
end
if #ids > 0 then
  give(ids, owners)
end
ids, owners = {}, {}
for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local score = redis.call('ZSCORE', messages, prefix .. id)
  if score and tonumber(score) == tonumber(ARGV[i + 1]) and not claimed[id] then
    ids[#ids + 1], owners[#owners + 1] = id, member
  end
end
if #ids > 0 then
  give(ids, owners)
end
-- A page may have expired as a whole; those behind it have not. What is left after so many of them is for the next call.
local passed = 0
for _ = 1, limit > 0 and 8 or 0 do
  local page = redis.call('ZRANGE', messages, passed, passed + limit - 1)
  if #page == 0 or given >= limit then
    break
  end
  ids, owners = {}, {}
  for _, key in ipairs(page) do
    local id = string.sub(key, #prefix + 1)
    if claimed[id] then
      passed = passed + 1
    elseif given + #ids < limit then
      ids[#ids + 1], owners[#owners + 1] = id, member
    end
  end
  if #ids > 0 then
    passed = passed + give(ids, owners)
  end
end
if answer[1] > 0 then
  note_removed(ARGV[1], look_before_removal(messages, ARGV[1], {}), answer[1], true)
end
return answer
