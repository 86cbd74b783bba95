-- One page of a queue, in order; members whose message has expired are removed.
-- KEYS: messages        ARGV: key of the total, score to go on after, most messages
-- Returns: whether this is the last page, score to go on after, how many had expired, then packet id, score and value of each message.
local messages, after, limit = KEYS[1], ARGV[2], tonumber(ARGV[3])
local prefix = #messages + 2
local answer = { 0, after, 0 }
local found = 0
-- A score that no message had yet: everything was flushed since the last page, and scores start at 0 again. The state is not
-- among the keys, because a cluster that moves the slot refuses scripts that name keys it cannot find.
local counters = redis.call('HGET', string.sub(messages, 1, -9) .. 'state', 'n')
if counters and tonumber(after) > struct.unpack('<i8', counters) then
  after = '-1'
end
for _ = 1, 8 do
  local page = redis.call('ZRANGEBYSCORE', messages, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit - found)
  if #page == 0 then
    answer[1] = 1
    after = counters and after or '-1'
    break
  end
  local members = {}
  for i = 1, #page, 2 do
    members[#members + 1] = page[i]
  end
  -- Never a single key: while its slot is moved, a server knows of several that it does not have them all, but takes
  -- one for a key that does not exist. The set itself is no value and comes back as none.
  members[#members + 1] = messages
  local values = redis.call('MGET', unpack(members))
  local gone = {}
  for i = 1, #members - 1 do
    local value = values[i]
    if value then
      found = found + 1
      answer[#answer + 1] = string.sub(members[i], prefix)
      answer[#answer + 1] = page[2 * i]
      answer[#answer + 1] = value
    else
      gone[#gone + 1] = members[i]
    end
  end
  if #gone > 0 then
    answer[3] = answer[3] + redis.call('ZREM', messages, unpack(gone))
  end
  after = page[#page]
  if found >= limit then
    break
  end
end
if answer[3] > 0 then
  note_removed(ARGV[1], look_before_removal(messages, ARGV[1], {}), answer[3], true)
end
answer[2] = after
return answer
