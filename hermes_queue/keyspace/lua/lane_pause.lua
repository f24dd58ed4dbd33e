-- @include time, numbers
-- An operator pauses a lane: like an open circuit breaker, until it is closed by hand.
--
-- @key lane = lane:{lane}, outcomes = lane:{lane}:outcomes  see breaker.lua
-- @arg reason
-- @arg pause_s  after which the pause expires
-- Returns the previous state: open | half_open | ''.
local refused = refused_number({{'seconds', pause_s, 1, 1e9, true}})
if refused then return refused end
local before = redis.call('HGET', lane, 'state') or ''
redis.call('HSET', lane, 'state', 'open', 'cause', 'operator', 'message', reason,
  'opened', stamp(now), 'open_s', pause_s, 'until', stamp(now + tonumber(pause_s)))
redis.call('EXPIRE', lane, pause_s)
redis.call('DEL', outcomes)
return before
