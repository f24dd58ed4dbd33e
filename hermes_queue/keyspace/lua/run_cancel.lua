-- @include time, entries, members, healing, budget_settle, hash, journal, sched/freed
-- Cancel waiting and running trajectories in these groups of a cancelled run. May be repeated.
--
-- @key run = run:{run_id}, parked = run:{run_id}:parked, ahead = run:{run_id}:ahead, held = run:{run_id}:held, leases, delayed, waiting
-- @key unread_bytes = results:bytes
-- @arg prefix, finished_ttl_s
-- @arg groups[]  ids
-- A group is closed without being published; bodies of measured members expire.
-- Owners of running members learn of it with their next beat. Messages of waiting ones that
-- are still in the broker are answered `cancelled` by `begin`.
-- Returns the number of trajectories that this call has cancelled, -1 if the run is not
-- cancelled (any more: it was purged).
if redis.call('HGET', run, 'state') ~= 'cancelled' then return -1 end
redis.call('DEL', ahead, held)  -- first, so that a full Redis accepts the script, see trim.lua

-- Returns whether this call has cancelled it.
local function cancel(id)
  local traj = prefix .. 'traj:' .. id
  local job = fields_of(traj, 'state', 'journal', 'handed', 'leaf')
  local state = job.state
  if state ~= 'queued' and state ~= 'running' then return false end
  redis.call('HDEL', traj, 'attempts', 'leaf')
  drop_journal(prefix, traj, id, job)
  drop_handover(prefix, traj, id, job)
  redis.call('HSET', traj, 'state', 'cancelled')
  redis.call('EXPIRE', traj, finished_ttl_s)
  healing('SREM', parked, id)
  redis.call('ZREM', leases, id)
  healing('ZREM', delayed, id)
  healing('ZREM', waiting, id)
  if state == 'running' then
    redis.pcall('HINCRBY', run, 'running', -1)
    freed(job.leaf)
    budget_settle(run, traj, nil, now)
  else
    take_out(job.leaf, id)
  end
  redis.call('HDEL', traj, 'job')
  return true
end

local n = 0
for _, group_id in ipairs(groups) do
  local group = prefix .. 'group:' .. group_id
  local g = fields_of(group, 'size', 'planned', 'closed')
  if g.size and not g.closed then
    for index = 0, samples_of(g) - 1 do
      if cancel(group_id .. '.' .. index) then n = n + 1 end
      local kept = redis.call('HGET', group, 'm:' .. index) or redis.call('HGET', group, 'x:' .. index)
      kept = member_of(kept)
      if kept then
        redis.call('EXPIRE', prefix .. 'body:' .. kept[1], finished_ttl_s)
        redis.call('DECRBY', unread_bytes, kept[3])
      end
    end
    redis.call('HSET', group, 'closed', 'cancelled')
    redis.call('EXPIRE', group, finished_ttl_s)
  end
end
redis.pcall('HINCRBY', run, 'cancelled', n)
return n
