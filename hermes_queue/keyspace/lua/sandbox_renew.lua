-- Record sandboxes and renew their leases; a record that was lost is written again.
--
-- KEYS[1] sandboxes (ids by the end of their lease)
-- ARGV[1] prefix  ARGV[2] lease, s  ARGV[3] seconds that records outlive the last renewal
-- ARGV[4...] pairs of id, facts (JSON)
-- Returns how many.
local t = redis.call('TIME')
local expires = string.format('%.6f', tonumber(t[1]) + tonumber(t[2]) / 1e6 + tonumber(ARGV[2]))
for i = 4, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], expires, ARGV[i])
  redis.call('SET', ARGV[1] .. 'sandbox:' .. ARGV[i], ARGV[i + 1], 'EX', ARGV[3])
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return (#ARGV - 3) / 2
