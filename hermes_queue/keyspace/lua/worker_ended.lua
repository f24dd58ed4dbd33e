-- @include entries, hash
-- Report a dead worker, so that its leases need not run out.
--
-- @key leases, life = life:{owner}, worker = worker:{owner}, workers  life: see include/deaths.lua
-- @arg prefix, owner
-- @arg boot_id  of the reporting process's host
-- @arg witnessed  '1' = reported by its parent
-- @arg life_ttl_s  how long its death can be examined
-- Only a process of the same boot is believed: a lock on a network file system proves nothing.
-- A worker that was started for the quarantine is reported by its parent, as long as that lives: what
-- the parent has seen is held against the job in full, and a sweep may follow the first report at once.
-- Leases are set to score 0 and taken back by the next sweep.
-- Returns the number of these leases; -1 if the worker ran under another boot or is unknown; -2 if the
-- report is left to its parent. May be repeated.
local known = hash(life, 'boot', 'outlived', 'parent')
if boot_id == '' or known.boot ~= boot_id then return -1 end
if witnessed == '1' then redis.call('HSET', life, 'witnessed', '1') end
if known.outlived then return 0 end
if witnessed ~= '1' and known.parent
  and redis.call('EXISTS', prefix .. 'worker:' .. known.parent) == 1 then return -2 end
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
