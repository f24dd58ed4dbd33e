-- The other members of a group that begins are next in their leaf, so that few groups are open at a time.
local function put_first(leaf)
  local planned = math.min(tonumber(redis.call('HGET', group, 'planned') or '') or 1, 8192)
  if planned < 2 then return end
  local own, place = group_of(id), place_of(0, STARTED)
  for first = 0, planned - 1, 1000 do
    local flat = {}
    for index = first, math.min(planned, first + 1000) - 1 do
      flat[#flat + 1], flat[#flat + 2] = place, own .. '.' .. index
    end
    redis.pcall('ZADD', jobs_of(leaf), 'XX', unpack(flat))
  end
end

-- Take the lease of a job of the group `g` and the run `r` (nil = unknown); returns the epoch and the start
-- of the lease. A repeated call renews the lease under the same epoch.
local function lease(is_repeated, job, g, r, marker)
  local epoch, begun = tonumber(job.epoch), job.begun or ''
  redis.call('ZADD', leases, stamp(now + tonumber(lease_s)), id)
  if not is_repeated then
    epoch, begun = epoch + 1, stamp(now)
    redis.call('HSET', traj, 'state', 'running', 'epoch', string.format('%d', epoch), 'owner', owner,
      'nonce', nonce, 'stage', 'load', 'begun', begun, 'leaf', marker)
    if g.created and not g.begun and not g.only_ends then
      redis.call('HSET', group, 'begun', '1')
      if job.leaf then put_first(job.leaf) end
    end
    if g.is_admitted then admit(g) end
    if r then redis.pcall('HINCRBY', run, 'running', 1) end  -- as in `budget_book`
  end
  healing('ZREM', delayed, id)
  healing('ZREM', waiting, id)
  return epoch, begun
end
