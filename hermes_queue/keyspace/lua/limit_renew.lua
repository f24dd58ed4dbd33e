-- @include time
-- Renew the leases of calls to one model endpoint that are still going on.
--
-- @key leases = limit:{name}:leases  request id -> end of its lease
-- @arg lease_s
-- @arg state_ttl_s  for which the key is kept
-- @arg requests[]  ids
-- Returns how many of them are leased; one that is not any more is not leased anew, since its
-- release may have come first.
local leased = 0
for _, id in ipairs(requests) do
  if redis.call('ZSCORE', leases, id) then
    redis.call('ZADD', leases, 'XX', stamp(now + tonumber(lease_s)), id)
    leased = leased + 1
  end
end
redis.call('EXPIRE', leases, state_ttl_s)
return leased
