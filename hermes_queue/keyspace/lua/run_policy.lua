-- include: numbers
-- Say which version of the policy a run is at; the run need not exist yet.
--
-- KEYS[1] run:{id}
-- ARGV[1] version  ARGV[2] '1' = it may be an older one  ARGV[3] TTL of a run, s
-- Returns {1 when it is this version now, else 0; the version before or ''}. An older one is
-- refused unless asked for: calls of several processes may come in any order.
local refused = refused_number({{'policy version', ARGV[1], -EXACT, EXACT, true}, {'TTL of the run, s', ARGV[3], 1, 1e9, true}})
if refused then return refused end
local before = redis.call('HGET', KEYS[1], 'policy_version') or ''
if before ~= '' and tonumber(ARGV[1]) < tonumber(before) and ARGV[2] ~= '1' then
  return {0, before}
end
redis.call('HSET', KEYS[1], 'policy_version', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {1, before}
