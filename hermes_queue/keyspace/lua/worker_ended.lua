-- include: entries
-- A process has found a worker dead, and does not wait until its leases end.
--
-- KEYS[1] leases  KEYS[2] life:{owner} (see include/deaths.lua)  KEYS[3] worker:{owner}
-- KEYS[4] workers
-- ARGV[1] prefix  ARGV[2] owner  ARGV[3] boot id of the host of whoever found it
-- ARGV[4] '1' when its parent did  ARGV[5] seconds for which its death can be looked into
-- Only a process of the same boot can know: a lock on a network file system proves nothing.
-- Leases of score 0 are for the next sweep.
-- Returns how many leases end, -1 when the worker is of another boot or unknown. May be repeated.
local life = redis.call('HMGET', KEYS[2], 'boot', 'outlived')
if ARGV[3] == '' or life[1] ~= ARGV[3] then return -1 end
if ARGV[4] == '1' then redis.call('HSET', KEYS[2], 'witnessed', '1') end
if life[2] then return 0 end
redis.call('HSET', KEYS[2], 'outlived', '1')
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[2])
local n = 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if fields_of(ARGV[1] .. 'traj:' .. id, 'owner')[1] == ARGV[2] then
    redis.call('ZADD', KEYS[1], 0, id)
    n = n + 1
  end
end
return n
