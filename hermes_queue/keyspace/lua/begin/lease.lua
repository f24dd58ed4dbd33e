-- Take the lease of a job of the group `g` and the run `r` (nil = unknown); returns the epoch and the start
-- of the lease. A repeated call renews the lease under the same epoch.
local function lease(is_repeated, job, g, r)
  local epoch, begun = tonumber(job.epoch), job.begun or ''
  if not is_repeated then
    epoch, begun = epoch + 1, stamp(now)
    redis.call('HSET', traj, 'state', 'running', 'epoch', string.format('%.0f', epoch), 'owner', owner,
      'nonce', nonce, 'stage', 'load', 'begun', begun)
    if g.created and not g.begun and not g.only_ends then redis.call('HSET', group, 'begun', '1') end
    admit(g)
    if r then redis.call('HINCRBY', run, 'running', 1) end
  end
  redis.call('ZADD', leases, stamp(now + tonumber(lease_s)), id)
  redis.call('ZREM', delayed, id)
  redis.call('ZREM', waiting, id)
  return epoch, begun
end
