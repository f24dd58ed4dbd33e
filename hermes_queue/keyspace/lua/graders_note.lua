-- @include time
-- A worker reports that it grades what agents of these lanes have done.
--
-- @key graders[]  graders:{lane} each: hosts of graders by the time until which one of them is believed to live
-- @arg host
-- @arg ttl_s  until it counts as silent
for _, key in ipairs(graders) do
  redis.call('ZADD', key, stamp(now + tonumber(ttl_s)), host)
  redis.call('EXPIRE', key, math.ceil(tonumber(ttl_s)))
end
return #graders
