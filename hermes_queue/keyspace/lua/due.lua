-- @include time, entries, ids
-- Jobs whose delay is over. One mover claims each of them, publishes its message and then confirms;
-- if the mover dies in between, the job is due again after the claim.
--
-- @key delayed
-- @key paced_runs = paced  runs with jobs that wait for a trainer, see run_release.lua
-- @arg prefix, claim_s
-- @arg most  jobs
-- @answer claim  score under which they are confirmed
-- @answer bad  ids of invalid entries, which are removed
-- @answer jobs[id, attempt, lane, priority, env, instance_id, cancel]  env and instance_id are ''
--         if the group is gone, cancel is '1' if it has to end as cancelled
-- @answer paced  ids of runs that a trainer holds back, and $budget:<name> of budgets for which jobs wait
local claim = stamp(now + tonumber(claim_s))
local bad, jobs = {}, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', stamp(now), 'LIMIT', 0, most)) do
  local job = fields_of(prefix .. 'traj:' .. id, 'state', 'attempt', 'lane', 'priority', 'cancel', 'epoch')
  if job.state ~= 'queued' then
    redis.call('ZREM', delayed, id)
  elseif not (is_job(id, job.lane, job.attempt, job.epoch) and job.priority and string.find(job.priority, '^%d$')) then
    redis.call('ZREM', delayed, id)
    bad[#bad + 1] = id
  else
    redis.call('ZADD', delayed, claim, id)
    local group = fields_of(prefix .. 'group:' .. group_of(id), 'env', 'instance_id')
    jobs[#jobs + 1] = {id, job.attempt, job.lane, job.priority, group.env or '', group.instance_id or '',
      job.cancel and '1' or ''}
  end
end
return {claim, bad, jobs, redis.call('ZRANGE', paced_runs, 0, most)}
