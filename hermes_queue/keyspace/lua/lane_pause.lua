-- include: numbers
-- An operator pauses a lane: what an open circuit breaker does, until somebody closes it.
--
-- KEYS[1] lane:{lane}  KEYS[2] lane:{lane}:outcomes (see breaker.lua)
-- ARGV[1] reason  ARGV[2] seconds after which the pause is forgotten
-- Returns the state before: open | half_open | ''.
local refused = refused_number({{'seconds', ARGV[2], 1, 1e9, true}})
if refused then return refused end
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local before = redis.call('HGET', KEYS[1], 'state') or ''
redis.call('HSET', KEYS[1], 'state', 'open', 'cause', 'operator', 'message', ARGV[1],
  'opened', string.format('%.6f', now), 'open_s', ARGV[2],
  'until', string.format('%.6f', now + tonumber(ARGV[2])))
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
return before
