-- @include healing, sched/leaf
-- Set what an operator wants of a lane, team, run or env, or of the whole fleet; it need not exist yet.
--
-- @key sched, running = sched:running
-- @arg name  lane|NAME, team|NAME, run|NAME, env|NAME or fleet
-- @arg row  `name=number name=number`, see sched/rows.lua; '' = nothing
-- The field `limits` says that any of them but the fleet has a row, or the fleet a quota; without it nobody counts
-- the running jobs of lanes, teams and envs. So they are counted here when the first row is set.
-- Returns the previous row, or ''.
local before = redis.call('HGET', sched, name) or ''
if row == '' then redis.call('HDEL', sched, name) else redis.call('HSET', sched, name, row) end
local any = string.find(redis.call('HGET', sched, 'fleet') or '', 'quota_h=', 1, true) ~= nil
for _, known in ipairs(redis.call('HKEYS', sched)) do any = any or string.find(known, '^[lter]%a+|') end
if not any then
  redis.call('HDEL', sched, 'limits')
  redis.call('HDEL', running, 'limits')
elseif redis.call('HGET', sched, 'limits') == false then
  local counts, flat = {}, redis.call('HGETALL', running)
  for i = 1, #flat, 2 do
    local lane, team, _, env = parts_of_leaf(flat[i])
    local r = counts_in(flat[i + 1])
    -- Counts from a time in which something was set are those of jobs that have ended meanwhile, too.
    local is_count = string.find(flat[i], '^%a+|[^|]*$')
    for _, part in ipairs(lane and {'lane|' .. lane, 'team|' .. team, 'env|' .. env} or is_count and {flat[i]} or {}) do
      counts[part] = (counts[part] or 0) + (lane and r or 0)
    end
  end
  for part, count in pairs(counts) do redis.call('HSET', running, part, count) end
  redis.call('HSET', sched, 'limits', 1)
  redis.call('HSET', running, 'limits', 1)
end
return before
