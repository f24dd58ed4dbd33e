-- @include time
-- Remember lanes that jobs were sent to, so that whoever looks finds them without a scan.
--
-- @key lanes  by the time of the last job sent
-- @arg known_s  after which a lane without jobs is forgotten
-- @arg names[]
-- Returns how many lanes are known.
local second = math.floor(now)
for _, name in ipairs(names) do redis.call('ZADD', lanes, second, name) end
redis.call('ZREMRANGEBYSCORE', lanes, '-inf', second - tonumber(known_s))
redis.call('EXPIRE', lanes, known_s)
return redis.call('ZCARD', lanes)
