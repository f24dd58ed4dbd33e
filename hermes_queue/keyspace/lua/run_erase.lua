-- @include entries, members
-- Delete groups of a run that is being purged, and their trajectories. Their results stay. May be
-- repeated.
--
-- @key run = run:{run_id}
-- @arg prefix
-- @arg groups[]  ids
-- Returns the number of deleted trajectories; -1 if the run is not cancelled (any more: it was purged).
if redis.call('HGET', run, 'state') ~= 'cancelled' then return -1 end
local n = 0
for _, group_id in ipairs(groups) do
  local group = prefix .. 'group:' .. group_id
  local g = fields_of(group, 'size', 'planned')
  for index = 0, samples_of(g) - 1 do
    n = n + redis.call('DEL', prefix .. 'traj:' .. group_id .. '.' .. index)
  end
  redis.call('DEL', group)
end
return n
