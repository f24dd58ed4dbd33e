-- Ask for leave to create one sandbox at a provider, at the fleet's rate.
--
-- KEYS[1] creation:{backend}           hash: tokens, at (seconds)
-- KEYS[2] creation:{backend}:starting  zset: token of a creation -> when it counts no more
-- ARGV[1] creations per second  ARGV[2] sandboxes that may be starting at once
-- ARGV[3] token of this creation  ARGV[4] seconds after which it counts no more, should its
--         worker die
-- Returns '0' when the caller may create now, else the seconds after which to ask again. The
-- bucket holds one second's worth of creations, and at least one.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local rate, room = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local latest = now + tonumber(ARGV[4])  -- what counts for longer is of before the clock was set back
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. latest, '+inf')) do
  redis.call('ZADD', KEYS[2], latest, id)
end
if redis.call('ZSCORE', KEYS[2], ARGV[3]) then return '0' end
if redis.call('ZCARD', KEYS[2]) >= room then return '0.5' end
local burst = math.max(1, rate)
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(state[1] or burst)
local since = now - tonumber(state[2] or now)
if since < 0 then  -- likewise
  since = 0
  redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now))
end
tokens = math.min(burst, tokens + since * rate)
if tokens < 1 then return string.format('%.6f', (1 - tokens) / rate) end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens - 1), 'at', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate) + 60)
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]), ARGV[3])
redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[4])) + 60)
return '0'
