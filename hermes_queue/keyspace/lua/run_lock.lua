-- @include numbers
-- Keep the lock of a run: what it is made from. The run need not exist yet; a later call replaces it.
--
-- @key run = run:{run_id}
-- @arg lock  JSON
-- @arg run_ttl_s
-- Returns 1.
local refused = refused_number({{'TTL of the run, s', run_ttl_s, 1, 1e9, true}})
if refused then return refused end
redis.call('HSET', run, 'lock', lock)
redis.call('EXPIRE', run, run_ttl_s)
return 1
