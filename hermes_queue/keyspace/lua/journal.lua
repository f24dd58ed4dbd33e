-- @include numbers, hash
-- Add entries to the journal of a running trajectory, from which another worker may continue it.
--
-- @key traj = traj:{id}, journal = journal:{id}
-- @arg owner, epoch
-- @arg after  number of entries that stay; the ones beyond are of turns that were lost, or of this very call
-- @arg ttl_s
-- @arg cost_usd, tokens  of the turns in it that are not booked; cost '' = unknown
-- @arg snapshot  newest copy of the slot's files that an entry names; '' = none
-- @arg entries[]
-- @answer verdict  ok | stale (the lease is not the caller's) | gap (fewer entries than `after` are there)
-- May be repeated.
local refused = refused_number({{'entries', after, 0, EXACT, true}, {'TTL of a journal, s', ttl_s, 1, 1e9, true},
  {'cost, USD', cost_usd == '' and '0' or cost_usd, 0, 1e9}, {'tokens', tokens, 0, 1e15, true}})
if refused then return refused end
local job = hash(traj, 'state', 'owner', 'epoch')
if job.state ~= 'running' or job.owner ~= owner or job.epoch ~= epoch then return {'stale'} end
local kept = tonumber(after)
if redis.call('LLEN', journal) < kept then return {'gap'} end
if kept == 0 then redis.call('DEL', journal) else redis.call('LTRIM', journal, 0, kept - 1) end
for _, entry in ipairs(entries) do redis.call('RPUSH', journal, entry) end
redis.call('EXPIRE', journal, ttl_s)
redis.call('HSET', traj, 'journal', epoch, 'noted', cjson.encode({cost_usd = cost_usd, tokens = tokens}))
if snapshot ~= '' then redis.call('HSET', traj, 'snapshot', snapshot) end
return {'ok'}
