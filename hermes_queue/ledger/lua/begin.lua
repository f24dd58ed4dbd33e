-- Take the lease of one trajectory, or say why not.
--
-- KEYS[1] traj:{id}  KEYS[2] leases  KEYS[3] delayed  KEYS[4] waiting  KEYS[5] run:{id}
-- ARGV[1] id  ARGV[2] attempt in the message  ARGV[3] owner  ARGV[4] lease, s
-- ARGV[5] nonce of this delivery: repeating a call whose answer was lost answers the same
-- Returns {verdict, epoch, attempt, deaths, job, used seconds, attempts}, verdict being
-- run | final | cancelled | surplus | stale_attempt | busy | unknown; all but `run` stand alone.
-- An expired lease is `busy` too: only the sweep takes a job back, so that deaths count.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local f = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'job', 'nonce')
local state, attempt, job = f[1], f[2], f[3]
if not state then return {'unknown'} end
if state == 'final' or state == 'cancelled' or state == 'surplus' then return {state} end
if tonumber(ARGV[2]) < tonumber(attempt) then return {'stale_attempt'} end
local again = state == 'running' and f[4] == ARGV[5]
if state == 'running' and not again then return {'busy'} end
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch'))
if not again then
  epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
  redis.call('HSET', KEYS[1], 'state', 'running', 'owner', ARGV[3], 'nonce', ARGV[5])
  if redis.call('EXISTS', KEYS[5]) == 1 then redis.call('HINCRBY', KEYS[5], 'running', 1) end
end
redis.call('ZADD', KEYS[2], string.format('%.6f', now + tonumber(ARGV[4])), ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
local g = redis.call('HMGET', KEYS[1], 'deaths', 'used', 'attempts')
return {'run', epoch, tonumber(attempt), tonumber(g[1] or 0), job, g[2] or '0', g[3] or ''}
