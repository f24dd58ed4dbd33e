-- @include time, entries, members, healing, ids, sched/leaf
-- Cancel single trajectories and whole groups. Each ends as a failure of the cause `cancelled`, which
-- counts in its group like any other failure that is not refilled, so that the group can close.
--
-- @key delayed, waiting
-- @arg prefix, reason
-- @arg waiting_only  '1' = leave running ones alone
-- @arg groups[]  ids
-- @arg trajectories[id, attempt]  skipped if it is at another attempt; '' = any attempt
-- @answer found[id, state]  the id of a trajectory, or of a group that is unknown or closed, and
--                           waiting | running | final | cancelled | surplus | closed | unknown
-- A job that waits, or is set aside because its run is paused or paced, becomes due at once; the worker that takes
-- it publishes its end. Owners of running ones learn of it with their next beat. Samples that are
-- enqueued into a cancelled group later end in the same way. May be repeated.
local found = {}
local function cancel(id, attempt)
  local traj = prefix .. 'traj:' .. id
  local job = fields_of(traj, 'state', 'attempt', 'leaf')
  local state = job.state or 'unknown'
  local meant = attempt == '' or attempt == job.attempt
  if state == 'queued' and meant then
    state = 'waiting'
    healing('ZREM', waiting, id)  -- first, so that a full Redis accepts the script, see trim.lua
    take_out(job.leaf, id)
    healing('SREM', prefix .. 'run:' .. run_of(id) .. ':parked', id)
    healing('ZREM', prefix .. 'run:' .. run_of(id) .. ':held', id)
    healing('ZADD', delayed, stamp(now), id)
  end
  if meant and (state == 'waiting' or state == 'running' and waiting_only ~= '1') then
    redis.call('HSET', traj, 'cancel', reason)
  end
  found[#found + 1] = {id, state}
end
for _, group_id in ipairs(groups) do
  local group = prefix .. 'group:' .. group_id
  local g = fields_of(group, 'size', 'planned', 'closed')
  if not g.size or g.closed then
    found[#found + 1] = {group_id, g.size and 'closed' or 'unknown'}
  else
    redis.call('HSET', group, 'cancel', reason)
    for index = 0, samples_of(g) - 1 do
      local id = group_id .. '.' .. index
      if redis.call('EXISTS', prefix .. 'traj:' .. id) == 1 then cancel(id, '') end
    end
  end
end
for _, each in ipairs(trajectories) do cancel(each.id, each.attempt) end
return {found}
