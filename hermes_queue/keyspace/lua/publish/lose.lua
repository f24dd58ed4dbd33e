-- @include goodput
-- Measured attempts do not count any more: so many, with the seconds of their slots.
local function lose(account, attempts, seconds)
  if not its_run then return end
  local ttl_s = redis.call('TTL', run)
  charge(prefix, run_id, ttl_s, 'd|' .. account, attempts, now)
  charge(prefix, run_id, ttl_s, 'l|' .. account, seconds, now)
end
