-- Turns messages into PUBRELs, which are empty, and keeps the time they live.
-- KEYS: messages        ARGV: packet ids
-- Returns: how many there were.
local keys = {}
for i, id in ipairs(ARGV) do
  keys[i] = KEYS[1] .. '_' .. id
end
-- Asked for together with the set a message that is not here yet, because its slot is moved, ends the script.
keys[#keys + 1] = KEYS[1]
redis.call('EXISTS', unpack(keys))
local released = 0
for i = 1, #ARGV do
  if redis.call('SET', keys[i], '', 'XX', 'KEEPTTL') then
    released = released + 1
  end
end
return released
