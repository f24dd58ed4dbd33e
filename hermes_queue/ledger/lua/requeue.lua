-- include: budget
-- include: totals
-- The current owner gives a job back: a retry (attempt + 1) or a hand-back (attempt stays).
--
-- KEYS[1] traj:{id}  KEYS[2] leases  KEYS[3] delayed  KEYS[4] run:{id}
-- KEYS[5] totals
-- ARGV[1] id  ARGV[2] owner  ARGV[3] epoch  ARGV[4] added to attempt (0 or 1)
-- ARGV[5] delay, s  ARGV[6] record of the failed attempt (JSON) or ''
-- ARGV[7] seconds of the total deadline that this attempt has used up
-- ARGV[8] what it cost, USD ('' = unknown)  ARGV[9] tokens it used
-- Returns {ok | stale, a warning about the run's budget or ''}.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local f = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch')
if f[1] ~= 'running' or f[2] ~= ARGV[2] or f[3] ~= ARGV[3] then return {'stale', ''} end
redis.call('HSET', KEYS[1], 'state', 'queued', 'owner', '')
redis.call('HINCRBY', KEYS[1], 'attempt', ARGV[4])
redis.call('HINCRBYFLOAT', KEYS[1], 'used', ARGV[7])
if ARGV[6] ~= '' then
  local old = redis.call('HGET', KEYS[1], 'attempts')
  redis.call('HSET', KEYS[1], 'attempts', (old and old .. '\n' or '') .. ARGV[6])
  local failure = cjson.decode(ARGV[6])['failure'] or {}
  total(KEYS[5], 1, 'retries', failure['cause'])
end
total_spent(KEYS[5], ARGV[8], ARGV[9])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3],
  string.format('%.6f', now + tonumber(ARGV[5])), ARGV[1])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('HINCRBY', KEYS[4], 'running', -1) end
return {'ok', budget_settle(KEYS[4], KEYS[1], {ARGV[8], ARGV[9]}, now)}
