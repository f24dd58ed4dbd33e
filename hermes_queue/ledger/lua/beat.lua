-- A worker says that it lives, and what it is.
--
-- KEYS[1] worker:{owner} (facts, JSON)  KEYS[2] workers (zset: owners by the end of their beat)
-- ARGV[1] owner  ARGV[2] facts  ARGV[3] seconds until it counts as silent
-- Returns how many workers live.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
redis.call('SET', KEYS[1], ARGV[2], 'PX', math.floor(1000 * tonumber(ARGV[3])))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.6f', now))
redis.call('ZADD', KEYS[2], string.format('%.6f', now + tonumber(ARGV[3])), ARGV[1])
redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[3])) + 60)
return redis.call('ZCARD', KEYS[2])
