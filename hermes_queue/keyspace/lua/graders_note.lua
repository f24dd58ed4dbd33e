-- @include time
-- A worker reports that it grades what agents of these lanes have done.
--
-- @key graders[]  graders:{lane} each: hosts of graders by the time until which one of them is believed to live
-- @arg host
-- @arg ttl_s  until it counts as silent
-- Silent ones are remembered for a day: copies of slots may be on their hosts.
local KNOWN_S = 86400
for _, key in ipairs(graders) do
  redis.call('ZADD', key, stamp(now + tonumber(ttl_s)), host)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', stamp(now - KNOWN_S))
  redis.call('EXPIRE', key, KNOWN_S)
end
return #graders
