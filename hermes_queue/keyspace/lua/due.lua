-- Jobs whose delay is over. Each is handed to one mover, which publishes its message and
-- then confirms; a mover that dies in between leaves it due again after the claim.
--
-- KEYS[1] delayed
-- ARGV[1] prefix  ARGV[2] claim, s  ARGV[3] most jobs
-- Returns {claim score, then per job: id, attempt, lane, priority, env, instance id (both '' when
-- its group is gone), '1' when it is to end as cancelled}.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local claim = string.format('%.6f', now + tonumber(ARGV[2]))
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now),
  'LIMIT', 0, ARGV[3])
local out = {claim}
for _, id in ipairs(ids) do
  local f = redis.call('HMGET', ARGV[1] .. 'traj:' .. id, 'state', 'attempt', 'lane', 'priority', 'cancel')
  if f[1] == 'queued' then
    redis.call('ZADD', KEYS[1], claim, id)
    out[#out + 1] = id
    out[#out + 1] = f[2]
    out[#out + 1] = f[3]
    out[#out + 1] = f[4]
    local g = redis.call('HMGET', ARGV[1] .. 'group:' .. string.match(id, '^(.*)%.'), 'env', 'instance_id')
    out[#out + 1] = g[1] or ''
    out[#out + 1] = g[2] or ''
    out[#out + 1] = f[5] and '1' or ''
  else
    redis.call('ZREM', KEYS[1], id)
  end
end
return out
