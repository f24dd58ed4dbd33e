-- @include time, budget, hash
-- The owner of a job gives it back to run alone, if workers died under another job of the same item.
--
-- @key traj = traj:{id}, leases, delayed, run = run:{run_id}
-- @key poison  SHA-256 of an item -> {letter, trajectory_id, until} (JSON), see publish/letter.lua
-- @arg id, owner, epoch
-- @arg item  SHA-256 of its item
-- It is due at once in the last lane of quarantine; that is neither an attempt nor a death.
-- Returns the id of the earlier dead letter; '' when the item is not known, the job runs alone
-- already, or the lease is somebody else's: then nothing was done.
local raw = redis.call('HGET', poison, item)
local known = raw and cjson.decode(raw)
if not known or known['until'] < now then return '' end
local job = hash(traj, 'state', 'owner', 'epoch', 'lane')
if job.state ~= 'running' or job.owner ~= owner or job.epoch ~= epoch then return '' end
local lane = string.gsub(job.lane, '%.quarantine%-?%d*$', '') .. '.quarantine'
redis.call('HSET', traj, 'earlier', known['letter'])
if lane == job.lane then return '' end
redis.call('HSET', traj, 'lane', lane, 'state', 'queued', 'owner', '', 'queued', stamp(now))
redis.call('ZREM', leases, id)
redis.call('ZADD', delayed, stamp(now), id)
if redis.call('EXISTS', run) == 1 then redis.call('HINCRBY', run, 'running', -1) end
budget_settle(run, traj, {'0', 0}, now)
return known['letter']
