-- Remember lanes that jobs were sent to, so that whoever looks finds them without a scan.
--
-- KEYS[1] lanes (zset: lanes by the time of the last job sent)
-- ARGV[1] seconds after which a lane without jobs is forgotten  ARGV[2...] lanes
-- Returns how many lanes are known.
local t = redis.call('TIME')
local now = tonumber(t[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now, ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[1]))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return redis.call('ZCARD', KEYS[1])
