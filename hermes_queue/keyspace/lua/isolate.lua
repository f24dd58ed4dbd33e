-- @include time, healing, budget_settle, hash, sched/freed
-- The owner of a job hands it back to run alone if workers died under another job of the same item.
--
-- @key traj = traj:{id}, leases, delayed, run = run:{run_id}
-- @key poison  SHA-256 of an item -> {letter, trajectory_id, until} (JSON), see publish/letter.lua
-- @arg prefix, id, owner, epoch
-- @arg item  SHA-256 of its item
-- The job is due at once in the last quarantine lane; this counts as neither an attempt nor a death.
-- Returns the id of the earlier dead letter; '' if the item is unknown, the job runs alone already, or
-- the caller does not hold the lease: then the job is not moved.
local raw = redis.call('HGET', poison, item)
local known = raw and cjson.decode(raw)
if not known or known['until'] < now then return '' end
local job = hash(traj, 'state', 'owner', 'epoch', 'lane', 'leaf')
if job.state ~= 'running' or job.owner ~= owner or job.epoch ~= epoch then return '' end
local lane = string.gsub(job.lane, '%.quarantine%-?%d*$', '') .. '.quarantine'
redis.call('HSET', traj, 'earlier', known['letter'])
if lane == job.lane then return '' end
redis.call('HSET', traj, 'lane', lane, 'state', 'queued', 'owner', '', 'queued', stamp(now), 'leaf', '')
freed(job.leaf)
redis.call('ZREM', leases, id)
healing('ZADD', delayed, stamp(now), id)
if redis.call('EXISTS', run) == 1 then redis.pcall('HINCRBY', run, 'running', -1) end
budget_settle(run, traj, {'0', 0}, now)
return known['letter']
