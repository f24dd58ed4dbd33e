-- Renew the leases of calls to one model endpoint that are still going on.
--
-- KEYS[1] limit:{name}:leases  zset: request id -> end of its lease
-- ARGV[1] lease, s  ARGV[2] seconds the key is kept  ARGV[3...] request ids
-- Returns how many of them are leased; one that is not any more is not leased anew, since its
-- release may have come first.
local t = redis.call('TIME')
local until_s = string.format('%.6f', tonumber(t[1]) + tonumber(t[2]) / 1e6 + tonumber(ARGV[1]))
local leased = 0
for i = 3, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], 'XX', until_s, ARGV[i])
    leased = leased + 1
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return leased
