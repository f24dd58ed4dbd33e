-- include: entries
-- Jobs whose delay is over. Each is handed to one mover, which publishes its message and
-- then confirms; a mover that dies in between leaves it due again after the claim.
--
-- KEYS[1] delayed
-- ARGV[1] prefix  ARGV[2] claim, s  ARGV[3] most jobs
-- Returns {claim score, {ids of entries that are no jobs: they are taken out}, then per job: id, attempt, lane, priority, env, instance id (both '' when
-- its group is gone), '1' when it is to end as cancelled}.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local claim = string.format('%.6f', now + tonumber(ARGV[2]))
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now),
  'LIMIT', 0, ARGV[3])
local out, bad = {claim}, {}
for _, id in ipairs(ids) do
  local f = fields_of(ARGV[1] .. 'traj:' .. id, 'state', 'attempt', 'lane', 'priority', 'cancel', 'epoch')
  if f[1] ~= 'queued' then
    redis.call('ZREM', KEYS[1], id)
  elseif not (is_job(id, f[3], f[2], f[6]) and f[4] and string.find(f[4], '^%d$')) then
    redis.call('ZREM', KEYS[1], id)
    bad[#bad + 1] = id
  else
    redis.call('ZADD', KEYS[1], claim, id)
    local g = fields_of(ARGV[1] .. 'group:' .. string.match(id, '^(.*)%.'), 'env', 'instance_id')
    for _, value in ipairs({id, f[2], f[3], f[4], g[1] or '', g[2] or '', f[5] and '1' or ''}) do
      out[#out + 1] = value
    end
  end
end
table.insert(out, 2, bad)
return out
