-- Take the lease; returns the epoch. A repeated call renews the lease under the same epoch.
local function lease(is_repeated)
  local epoch = tonumber(redis.call('HGET', traj, 'epoch'))
  if not is_repeated then
    epoch = redis.call('HINCRBY', traj, 'epoch', 1)
    if redis.call('EXISTS', group) == 1 then redis.call('HSET', group, 'begun', '1') end
    redis.call('HSET', traj, 'state', 'running', 'owner', owner, 'nonce', nonce, 'stage', 'load', 'begun', stamp(now))
    if redis.call('EXISTS', run) == 1 then redis.call('HINCRBY', run, 'running', 1) end
  end
  redis.call('ZADD', leases, stamp(now + tonumber(lease_s)), id)
  redis.call('ZREM', delayed, id)
  redis.call('ZREM', waiting, id)
  return epoch
end
