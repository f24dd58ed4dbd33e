-- Note which snapshot at a provider holds a set-up, for workers on other hosts.
--
-- @key snapshot = snapshot:{hash}  place, name, id
-- @arg place  e.g. an app of the provider
-- @arg name, id  of the snapshot
-- @arg ttl_s  how long the provider keeps it
-- The last note wins. Returns 1.
redis.call('HSET', snapshot, 'place', place, 'name', name, 'id', id)
redis.call('PEXPIRE', snapshot, math.max(1, math.ceil(1000 * tonumber(ttl_s))))
return 1
