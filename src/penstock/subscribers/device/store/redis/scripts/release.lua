-- Turns messages into PUBRELs, which are empty, and keeps the time they live.
-- KEYS: messages        ARGV: key of the total, packet ids
-- Returns: how many there were.
local keys = {}
for i = 2, #ARGV do
  keys[i - 1] = KEYS[1] .. '_' .. ARGV[i]
end
-- A message that is not here yet, because its slot is moved, ends the script here.
ensure_here(KEYS[1], keys)
local known = look_before_removal(KEYS[1], ARGV[1], keys)
local released = 0
for i = 1, #keys do
  if redis.call('SET', keys[i], '', 'XX', 'KEEPTTL') then
    released = released + 1
  end
end
note_removed(ARGV[1], known, 0)
return released
