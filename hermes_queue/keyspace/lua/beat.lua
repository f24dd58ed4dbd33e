-- @include time
-- A worker reports that it lives, with facts about it.
--
-- @key worker = worker:{owner}  its facts
-- @key workers  owners by the end of their beat
-- @key life = life:{owner}, boot = boot:{boot_id}  evidence in case it dies: include/deaths.lua
-- @arg owner, facts
-- @arg ttl_s  until it counts as silent
-- @arg boot_id  of its host, '' = unknown
-- @arg shutting_down  '1' = it received SIGTERM
-- @arg parent  the worker that started it for the quarantine, '' = none
-- @arg life_ttl_s  how long its death can be examined
-- Returns the number of live workers.
redis.call('SET', worker, facts, 'PX', math.floor(1000 * tonumber(ttl_s)))
redis.call('ZREMRANGEBYSCORE', workers, '-inf', stamp(now))
redis.call('ZADD', workers, stamp(now + tonumber(ttl_s)), owner)
redis.call('EXPIRE', workers, math.ceil(tonumber(ttl_s)) + 60)
if boot_id ~= '' then
  redis.call('HSET', life, 'boot', boot_id, 'seen', stamp(now))
  if shutting_down == '1' then redis.call('HSET', life, 'told', '1') end
  if parent ~= '' then redis.call('HSET', life, 'parent', parent) end
  redis.call('EXPIRE', life, life_ttl_s)
  redis.call('SET', boot, stamp(now), 'EX', life_ttl_s)
end
return redis.call('ZCARD', workers)
