-- @include budget
-- Settle an attempt of a trajectory of which nothing was read yet, as `budget_book`.
local function budget_settle(run, traj, spent, now, noted)
  local job = hash(traj, 'reserved', 'begun', 'shared')
  if job.reserved or job.shared then redis.call('HDEL', traj, 'reserved', 'shared') end
  local held_s = leased_s(job.begun, now)
  if job.shared then shared_settle(job.shared, redis.call('HGET', traj, 'job'), run, spent, held_s, noted) end
  return budget_book(run, readable_accounts(run), job.reserved, spent, now, noted, held_s)
end
