-- Which of the listed sandboxes belong to nobody, and for long enough.
--
-- KEYS[1] sandboxes  KEYS[2] reaper:{backend}:suspects (ids by when they were first seen so)
-- ARGV[1] prefix  ARGV[2] grace, s  ARGV[3...] pairs of sandbox id, worker
-- Returns the ids to terminate: neither did the worker beat nor was the lease held, at this
-- call and at one a grace ago. Their records are dropped, so that nobody can claim them from now
-- on; one whose termination fails is listed again and judged again. Safe to repeat.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local dead = {}
for i = 3, #ARGV, 2 do
  local lease = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or '0')
  if lease > now or redis.call('EXISTS', ARGV[1] .. 'worker:' .. ARGV[i + 1]) == 1 then
    redis.call('ZREM', KEYS[2], ARGV[i])
  else
    redis.call('ZADD', KEYS[2], 'LT', string.format('%.6f', now), ARGV[i])  -- the clock may be set back
    if now - tonumber(redis.call('ZSCORE', KEYS[2], ARGV[i])) >= tonumber(ARGV[2]) then
      dead[#dead + 1] = ARGV[i]
      redis.call('ZREM', KEYS[1], ARGV[i])
      redis.call('DEL', ARGV[1] .. 'sandbox:' .. ARGV[i])
    end
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 86400)  -- ended long ago
redis.call('EXPIRE', KEYS[2], 86400)
return dead
