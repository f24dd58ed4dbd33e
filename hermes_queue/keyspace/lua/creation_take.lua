-- @include time, hash
-- Ask for permission to create one sandbox at a provider, at the fleet's rate.
--
-- @key creation = creation:{backend}  tokens, at (seconds)
-- @key starting = creation:{backend}:starting  token of a creation -> time at which it stops counting
-- @arg creates_per_s, max_starting  sandboxes that may be starting at once
-- @arg token  of this creation
-- @arg starting_ttl_s  after which it stops counting, in case its worker dies
-- Returns '0' if the caller may create now, else the seconds after which to ask again. The
-- bucket holds the creations of one second, and at least one.
local rate = tonumber(creates_per_s)
redis.call('ZREMRANGEBYSCORE', starting, '-inf', now)
local latest = now + tonumber(starting_ttl_s)  -- later scores were set before the clock was set back
for _, id in ipairs(redis.call('ZRANGEBYSCORE', starting, '(' .. latest, '+inf')) do
  redis.call('ZADD', starting, latest, id)
end
if redis.call('ZSCORE', starting, token) then return '0' end
if redis.call('ZCARD', starting) >= tonumber(max_starting) then return '0.5' end
local burst = math.max(1, rate)
local state = hash(creation, 'tokens', 'at')
local tokens = tonumber(state.tokens or burst)
local since = now - tonumber(state.at or now)
if since < 0 then  -- the clock was set back
  since = 0
  redis.call('HSET', creation, 'at', stamp(now))
end
tokens = math.min(burst, tokens + since * rate)
if tokens < 1 then return string.format('%.6f', (1 - tokens) / rate) end
redis.call('HSET', creation, 'tokens', string.format('%.6f', tokens - 1), 'at', stamp(now))
redis.call('EXPIRE', creation, math.ceil(burst / rate) + 60)
redis.call('ZADD', starting, latest, token)
redis.call('EXPIRE', starting, math.ceil(tonumber(starting_ttl_s)) + 60)
return '0'
