-- @include time, healing, budget_settle, totals, numbers, hash, journal, sched/freed
-- The owner of a trajectory whose agent is done hands it over: another worker grades it.
--
-- @key traj = traj:{id}, leases, delayed, run = run:{run_id}, totals
-- @key work = handover:{id}  what the agent has done
-- @key handed  ids of what waits to be graded, or is being graded, by the end of their work's TTL
-- @key graders = graders:{lane}  see graders_note.lua
-- @key staged = staged:{token}
-- @arg prefix, id, owner, epoch
-- @arg lane  of agents
-- @arg handover  token of this one: a call repeated because its answer was lost gets the same answer
-- @arg snapshot  copy of the slot's files, '' = none is needed
-- @arg only_host  the one that can restore it, '' = any
-- @arg most  hand-overs of the deployment at once
-- @arg ttl_s  of the work
-- @arg used_s  seconds of the total deadline that this attempt used
-- @arg cost_usd, tokens  spent by the agent; cost '' = unknown
-- @arg body  '' = it was stored as `staged`
-- @answer verdict  ok | stale (the lease is not the caller's) | nobody (no worker grades this lane) |
--         elsewhere (workers of other hosts do, too) | full | unstored (`staged` has expired)
-- @answer warning  about the run's budget or ''
-- Neither an attempt nor a death. Nothing is done unless the verdict is `ok`.
local refused = refused_number({{'hand-overs', most, 1, EXACT, true}, {'TTL, s', ttl_s, 1, 1e9, true},
  {'seconds used', used_s, 0, 1e9}, {'cost, USD', cost_usd == '' and '0' or cost_usd, 0, 1e9},
  {'tokens', tokens, 0, 1e15, true}})
if refused then return refused end
local job = hash(traj, 'state', 'owner', 'epoch', 'lane', 'journal', 'handed', 'leaf')
if job.handed == handover then return {'ok', ''} end
if job.state ~= 'running' or job.owner ~= owner or job.epoch ~= epoch or job.handed then return {'stale', ''} end
local hosts = redis.call('ZRANGEBYSCORE', graders, '(' .. stamp(now), '+inf', 'LIMIT', 0, 2)
if job.lane ~= lane or #hosts == 0 then return {'nobody', ''} end
if only_host ~= '' and (#hosts > 1 or hosts[1] ~= only_host) then return {'elsewhere', ''} end
if redis.call('ZCOUNT', handed, '(' .. stamp(now), '+inf') >= tonumber(most) then return {'full', ''} end
if body ~= '' then
  redis.call('SET', work, body, 'EX', ttl_s)  -- the first write, so that a full Redis refuses the script as a whole
else
  if redis.call('EXISTS', staged) == 0 then return {'unstored', ''} end
  redis.call('RENAME', staged, work)
  redis.call('EXPIRE', work, ttl_s)
end
redis.call('ZREMRANGEBYSCORE', handed, '-inf', stamp(now))
redis.call('ZADD', handed, stamp(now + tonumber(ttl_s)), id)
redis.call('EXPIRE', handed, ttl_s)
drop_journal(prefix, traj, id, job)
redis.call('ZREM', leases, id)
healing('ZADD', delayed, stamp(now), id)
redis.call('HSET', traj, 'state', 'queued', 'owner', '', 'queued', stamp(now), 'lane', lane .. '.verify',
  'handed', handover, 'snapshot', snapshot, 'leaf', '')
freed(job.leaf)
redis.pcall('HINCRBYFLOAT', traj, 'used', used_s)  -- as in `budget_book`
if redis.call('EXISTS', run) == 1 then redis.pcall('HINCRBY', run, 'running', -1) end
total_spent(totals, cost_usd, tokens)
return {'ok', budget_settle(run, traj, {cost_usd, tokens}, now)}
