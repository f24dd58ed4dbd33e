-- Report a dead worker, so that its leases need not run out.
-- A process has found a worker dead, and does not wait until its leases end.
--
-- @key leases, life = life:{owner}, worker = worker:{owner}, workers  life: see include/deaths.lua
-- @arg prefix, owner
-- @arg boot_id  of the reporting process's host
-- @arg witnessed  '1' = reported by its parent
-- @arg life_ttl_s  how long its death can be examined
-- Only a process of the same boot is believed: a lock on a network file system proves nothing.
-- Leases are set to score 0 and taken back by the next sweep.
-- Returns the number of these leases, -1 if the worker ran under another boot or is unknown. May be repeated.
local known = hash(life, 'boot', 'outlived')
if boot_id == '' or known.boot ~= boot_id then return -1 end
if witnessed == '1' then redis.call('HSET', life, 'witnessed', '1') end
if known.outlived then return 0 end
redis.call('HSET', life, 'outlived', '1')
redis.call('EXPIRE', life, life_ttl_s)
redis.call('DEL', worker)
redis.call('ZREM', workers, owner)
local n = 0
for _, id in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
  if fields_of(prefix .. 'traj:' .. id, 'owner').owner == owner then
    redis.call('ZADD', leases, 0, id)
    n = n + 1
  end
end
return n
