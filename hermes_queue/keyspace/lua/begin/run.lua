-- @lazy turned_away, turn_away
-- @include journal
-- The state of the job's run: a job of a paused run is parked, one of a cancelled run is cancelled.

local function turn_away(run_state, job)
  local ttl = math.max(1, redis.call('TTL', run))
  healing('ZREM', delayed, id)
  healing('ZREM', waiting, id)
  if run_state == 'paused' then
    healing('SADD', run .. ':parked', id)
    redis.call('EXPIRE', run .. ':parked', ttl)
  else
    drop_journal(prefix, traj, id, job)
    drop_handover(prefix, traj, id, job)
    redis.call('HDEL', traj, 'job', 'attempts', 'leaf')
    redis.call('HSET', traj, 'state', 'cancelled')
    redis.call('EXPIRE', traj, ttl)
    redis.pcall('HINCRBY', run, 'cancelled', 1)
  end
  return run_state
end

-- `paused`, `cancelled` or nil. A job that only has to end as cancelled begins although its run is paused.
local function turned_away(r, cancel, job)
  if r.state == 'cancelled' or r.state == 'paused' and cancel == '' and not job.handed then
    return turn_away(r.state, job)
  end
end
