-- KEYS: messages, last packet id
-- Returns: how many messages are in the queue, and the last packet id that was given.
return { redis.call('ZCARD', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or 0) }
