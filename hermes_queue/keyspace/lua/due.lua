-- @include time, entries, healing, ids, sched/tree, sched/put
-- Jobs whose delay is over: each waits in its leaf again, before jobs that have not begun if it has. One mover
-- claims them, publishes their messages and then confirms; if it dies in between, they are due again after
-- the claim.
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
local teams = {}
local function wait(id, job, group)
  local run_id = run_of(id)
  teams[run_id] = teams[run_id] or fields_of(prefix .. 'run:' .. run_id, 'team').team or ''
  local leaf = name_of_leaf(job.lane, teams[run_id], run_id, group.env)
  local class = job.begun and RETURNED or group.begun and STARTED
  redis.call('HSET', prefix .. 'traj:' .. id, 'leaf', leaf)
  pcall(put_in, leaf, {place_of(job.priority, class, 0, not class and group.created), id})
end

local claim = stamp(now + tonumber(claim_s))
local bad, jobs = {}, {}
for _, id in ipairs(healing('ZRANGEBYSCORE', delayed, '-inf', stamp(now), 'LIMIT', 0, most)) do
  local job = fields_of(prefix .. 'traj:' .. id, 'state', 'attempt', 'lane', 'priority', 'cancel', 'epoch', 'begun')
  if job.state ~= 'queued' then
    redis.call('ZREM', delayed, id)
  elseif not (is_job(id, job.lane, job.attempt, job.epoch) and job.priority and string.find(job.priority, '^%d$')) then
    redis.call('ZREM', delayed, id)
    bad[#bad + 1] = id
  else
    redis.call('ZADD', delayed, claim, id)
    local group = fields_of(prefix .. 'group:' .. group_of(id), 'env', 'instance_id', 'begun', 'created')
    if not job.cancel then wait(id, job, group) end
    jobs[#jobs + 1] = {id, job.attempt, job.lane, job.priority, group.env or '', group.instance_id or '',
      job.cancel and '1' or ''}
  end
end
return {claim, bad, jobs, redis.call('ZRANGE', paced_runs, 0, most)}
