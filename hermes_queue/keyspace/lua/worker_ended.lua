-- @include entries, hash
-- A process has found a worker dead, and does not wait until its leases end.
--
-- @key leases, life = life:{owner}, worker = worker:{owner}, workers  life: see include/deaths.lua
-- @arg prefix, owner
-- @arg boot_id  of the host of whoever found it
-- @arg witnessed  '1' when its parent did
-- @arg life_ttl_s  for which its death can be looked into
-- Only a process of the same boot can know: a lock on a network file system proves nothing.
-- Leases of score 0 are for the next sweep.
-- Returns how many leases end, -1 when the worker is of another boot or unknown. May be repeated.
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
