-- @include time
-- Report what was read of a model engine's metrics, by the process that was told to.
--
-- @key engine = flights:{name}  as in flights.lua
-- @arg turn  the order to read, as given; a later one supersedes it
-- @arg kv  tokens of the cache, '' = nothing was read
-- @arg level  share of them that contexts may take
-- @arg memo  for the next reader
-- @arg hold_s  time for which the reading counts
-- @arg absent_s  time after which an endpoint that cannot be read is asked again
-- Returns 1, or 0 if it was superseded. A reading that fails leaves the last one to its end.
if redis.call('HGET', engine, 'turn') ~= turn then return 0 end
if kv ~= '' then
  redis.call('HSET', engine, 'kv', kv, 'level', level, 'memo', memo, 'until', stamp(now + hold_s))
  redis.call('HDEL', engine, 'absent')
elseif now >= (tonumber(redis.call('HGET', engine, 'until') or '0')) then
  redis.call('HSET', engine, 'absent', stamp(now + absent_s))
end
return 1
