-- @include numbers
-- Set the largest share of turns of a run whose tokens may drift; the run need not exist yet.
--
-- @key run = run:{run_id}
-- @arg max_drift  '' = any
-- @arg run_ttl_s
-- Returns 1. A run that is paused stays so.
local refused = refused_number({{'share', max_drift == '' and '0' or max_drift, 0, 1},
  {'TTL of the run, s', run_ttl_s, 1, 1e9, true}})
if refused then return refused end
if max_drift == '' then redis.call('HDEL', run, 'max_drift')
else redis.call('HSET', run, 'max_drift', max_drift) end
if redis.call('EXISTS', run) == 1 then redis.call('EXPIRE', run, run_ttl_s) end
return 1
