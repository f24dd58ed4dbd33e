-- @include time, healing
-- Remember lanes that jobs were sent to, so that they can be listed without a scan.
--
-- @key lanes  by the time of the last job sent
-- @arg prefix
-- @arg known_s  after which a lane without jobs is forgotten
-- @arg names[]
-- Returns the number of known lanes.
local second = math.floor(now)
for _, name in ipairs(names) do healing('ZADD', lanes, second, name) end
healing('ZREMRANGEBYSCORE', lanes, '-inf', second - tonumber(known_s))
redis.call('EXPIRE', lanes, known_s)
return redis.call('ZCARD', lanes)
