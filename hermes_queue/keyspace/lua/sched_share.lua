-- @include healing, sched/leaf
-- Set what an operator wants of a lane, team, run or env, or of the whole fleet; it need not exist yet.
--
-- @key sched, running = sched:running, leaves = sched:leaves
-- @arg prefix
-- @arg name  lane|NAME, team|NAME, run|NAME, env|NAME or fleet
-- @arg row  `name=number name=number`, see sched/rows.lua; '' = nothing
-- The field `limits` says that any of them but the fleet has a row, or the fleet a quota; without it nobody counts
-- the running jobs of lanes, teams and envs. So they are counted here when the first row is set.
-- Returns the previous row, or ''.
local before, known_leaves = redis.call('HGET', sched, name) or '', healing('ZRANGE', leaves, 0, -1)
if row == '' then redis.call('HDEL', sched, name) else redis.call('HSET', sched, name, row) end
local any = string.find(redis.call('HGET', sched, 'fleet') or '', 'quota_h=', 1, true) ~= nil
for _, known in ipairs(redis.call('HKEYS', sched)) do any = any or string.find(known, '^[lter]%a+|') end
if not any then
  redis.call('HDEL', sched, 'limits')
  redis.call('HDEL', running, 'limits')
elseif redis.call('HGET', sched, 'limits') == false then
  local counts = {}
  for _, leaf in ipairs(known_leaves) do
    local lane, team, _, env = parts_of_leaf(leaf)
    local r = counts_in(redis.call('HGET', running, leaf))
    for _, part in ipairs(lane and {'lane|' .. lane, 'team|' .. team, 'env|' .. env} or {}) do
      counts[part] = (counts[part] or 0) + r
    end
  end
  for part, count in pairs(counts) do redis.call('HSET', running, part, count) end
  redis.call('HSET', sched, 'limits', 1)
  redis.call('HSET', running, 'limits', 1)
end
return before
