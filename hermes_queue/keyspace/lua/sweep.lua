-- @include time, hash, ids, entries, healing, budget_settle, totals, goodput, deaths, sched/freed
-- @include sweep/clock_set_back, sweep/take_back
-- Take back the jobs whose lease has expired and queue them again, in one step.
--
-- @key leases, delayed, swept = sweep:last, totals, lanes
-- @key waiting, sandboxes  for a clock that was set back
-- @arg prefix
-- @arg interval_s  between two sweeps of the fleet, at least
-- @arg gap_s  without a sweep for this long, Redis or the whole fleet was away and living owners could
--      not renew. So every lease is extended to last at least for the grace, and none is taken back.
--      If the server's clock was set back, every lease lasts for the grace, however long it was.
--      Leases of score 0 belong to workers that are known to be dead: they are not extended.
-- @arg grace_s
-- @arg most  jobs per call
-- @arg quarantine_deaths  after which a job moves to quarantine: into a batch smaller than the number
--      of jobs that died with it, at last alone. Deaths alone are counted apart: only these are surely
--      the job's own. The death of a worker that was shutting down, or that may have died with its
--      host, is held against no job.
-- @answer swept  1 if a sweep was due, else 0
-- @answer bad  ids of invalid entries, which are removed
-- @answer taken  ids of jobs taken back
local last = tonumber(redis.call('GET', swept) or '0')
local is_set_back = now < last
if not is_set_back and now - last < tonumber(interval_s) then return {0, {}, {}} end
redis.call('SET', swept, stamp(now), 'EX', 86400)
if is_set_back or now - last > tonumber(gap_s) then
  extend_leases(is_set_back)
  if is_set_back then set_back(last - now) end
  return {1, {}, {}}
end
local expired = redis.call('ZRANGEBYSCORE', leases, '-inf', stamp(now), 'LIMIT', 0, most)
if #expired > 0 then note_shared(expired) end
local bad, taken = {}, {}
for _, id in ipairs(expired) do
  local traj = prefix .. 'traj:' .. id
  redis.call('ZREM', leases, id)
  local job = fields_of(traj, 'state', 'lane', 'attempt', 'epoch', 'owner', 'leaf')
  if job.state == 'running' then
    if is_job(id, job.lane, job.attempt, job.epoch) and job.owner then
      -- Queue it first: if the rest fails on a malformed counter, the job must not be lost.
      redis.call('HSET', traj, 'state', 'queued', 'queued', stamp(now), 'leaf', '')
      freed(job.leaf)
      healing('ZADD', delayed, stamp(now), id)
      local job = fields_of(traj, 'lane', 'owner', 'stage', 'died', 'epoch', 'journal', 'noted', 'begun')
      local whole = pcall(judge, traj, job)
      whole = pcall(settle_death, id, traj, job) and whole
      redis.call('HSET', traj, 'owner', '')
      taken[#taken + 1] = id
      if not whole then bad[#bad + 1] = id end
    else
      bad[#bad + 1] = id
    end
  end
end
return {1, bad, taken}
