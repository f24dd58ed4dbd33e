-- A worker says that it lives, and what it is.
--
-- KEYS[1] worker:{owner} (facts, JSON)  KEYS[2] workers (zset: owners by the end of their beat)
-- KEYS[3] life:{owner}  KEYS[4] boot:{id}, both for whoever finds it dead: include/deaths.lua
-- ARGV[1] owner  ARGV[2] facts  ARGV[3] seconds until it counts as silent
-- ARGV[4] boot id of its host, '' = not known  ARGV[5] '1' when it was told to go
-- ARGV[6] seconds for which its death can be looked into
-- Returns how many workers live.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local stamp = string.format('%.6f', now)
redis.call('SET', KEYS[1], ARGV[2], 'PX', math.floor(1000 * tonumber(ARGV[3])))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', stamp)
redis.call('ZADD', KEYS[2], string.format('%.6f', now + tonumber(ARGV[3])), ARGV[1])
redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[3])) + 60)
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[3], 'boot', ARGV[4], 'seen', stamp)
  if ARGV[5] == '1' then redis.call('HSET', KEYS[3], 'told', '1') end
  redis.call('EXPIRE', KEYS[3], ARGV[6])
  redis.call('SET', KEYS[4], stamp, 'EX', ARGV[6])
end
return redis.call('ZCARD', KEYS[2])
