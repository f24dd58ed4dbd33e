-- @include numbers
-- Set the current policy version of a run; the run need not exist yet.
--
-- @key run = run:{run_id}
-- @arg version
-- @arg force  '1' = also to an older version
-- @arg run_ttl_s
-- @answer done, before  1 = this is the version now, else 0; the version before or ''
-- An older version is refused without `force`: calls of several processes may arrive in any order, and
-- a late one would set the run back.
local refused = refused_number({{'policy version', version, -EXACT, EXACT, true}, {'TTL of the run, s', run_ttl_s, 1, 1e9, true}})
if refused then return refused end
local before = redis.call('HGET', run, 'policy_version') or ''
if before ~= '' and tonumber(version) < tonumber(before) and force ~= '1' then
  return {0, before}
end
redis.call('HSET', run, 'policy_version', version)
redis.call('EXPIRE', run, run_ttl_s)
return {1, before}
