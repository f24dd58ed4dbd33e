-- @include time
-- Renew the leases of ongoing calls to one model endpoint.
--
-- @key leases = limit:{name}:leases  request id -> end of its lease
-- @arg lease_s
-- @arg state_ttl_s  expiry of the key
-- @arg requests[]  ids
-- Returns how many of them are leased. An id without a lease is not leased again: its release may have
-- overtaken this call, and the new lease would count a call that has ended.
local leased = 0
for _, id in ipairs(requests) do
  if redis.call('ZSCORE', leases, id) then
    redis.call('ZADD', leases, 'XX', stamp(now + tonumber(lease_s)), id)
    leased = leased + 1
  end
end
redis.call('EXPIRE', leases, state_ttl_s)
return leased
