-- include: budget
-- Cancel what waits or runs of these groups of a cancelled run. May be repeated.
--
-- KEYS[1] run:{id}  KEYS[2] run:{id}:parked  KEYS[3] leases  KEYS[4] delayed  KEYS[5] waiting
-- KEYS[6] results:bytes
-- ARGV[1] prefix  ARGV[2] TTL of finished state, s  ARGV[3...] group ids
-- A group is closed without being published; members that were measured already expire.
-- Owners of running members learn of it with their next beat. Messages of waiting ones that
-- are still in the broker are answered `cancelled` by `begin`.
-- Returns the number of trajectories that this call has cancelled, -1 when the run is not
-- cancelled (any more: it was purged).
if redis.call('HGET', KEYS[1], 'state') ~= 'cancelled' then return -1 end
redis.call('SREM', KEYS[2], '')  -- first, so that a Redis that is full lets it pass, see trim.lua
local prefix, ttl, n = ARGV[1], ARGV[2], 0
for i = 3, #ARGV do
  local group = prefix .. 'group:' .. ARGV[i]
  local g = redis.call('HMGET', group, 'size', 'planned', 'closed')
  if g[1] and not g[3] then
    for index = 0, tonumber(g[2] or g[1]) - 1 do
      local id = ARGV[i] .. '.' .. index
      local key = prefix .. 'traj:' .. id
      local state = redis.call('HGET', key, 'state')
      if state == 'queued' or state == 'running' then
        redis.call('HDEL', key, 'job', 'attempts')
        redis.call('HSET', key, 'state', 'cancelled')
        redis.call('EXPIRE', key, ttl)
        redis.call('SREM', KEYS[2], id)
        redis.call('ZREM', KEYS[3], id)
        redis.call('ZREM', KEYS[4], id)
        redis.call('ZREM', KEYS[5], id)
        if state == 'running' then
          redis.call('HINCRBY', KEYS[1], 'running', -1)
          budget_settle(KEYS[1], key, nil, 0)
        end
        n = n + 1
      end
      local kept = redis.call('HGET', group, 'm:' .. index) or redis.call('HGET', group, 'x:' .. index)
      if kept then
        kept = cjson.decode(kept)
        redis.call('EXPIRE', prefix .. 'body:' .. kept[1], ttl)
        redis.call('DECRBY', KEYS[6], kept[3])
      end
    end
    redis.call('HSET', group, 'closed', 'cancelled')
    redis.call('EXPIRE', group, ttl)
  end
end
redis.call('HINCRBY', KEYS[1], 'cancelled', n)
return n
