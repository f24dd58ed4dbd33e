-- A run that is paced by its trainer: no more than `max_ahead` of its groups have begun and are neither
-- trained nor given up. Those are the fields of the hash `ahead`: a group's id -> the id of its entry in
-- the results stream, '' before it is there. A group counts once, however often its jobs begin.

-- Set the job aside if its group has to wait for the trainer: `paced` or nil. The mover, which calls
-- run_release, puts it back; so it occupies neither a worker nor the broker.
local function paced(g, r)
  local most, ahead, held = tonumber(r.max_ahead), run .. ':ahead', run .. ':held'
  if not most or not g.created or g.begun or healing('HEXISTS', ahead, group_of(id)) == 1 then return nil end
  -- Those that wait go first, even if there is room by now.
  if healing('HLEN', ahead) < most and redis.call('EXISTS', held) == 0 then
    g.is_admitted = true
    return nil
  end
  healing('ZREM', delayed, id)
  healing('ZREM', waiting, id)
  healing('ZADD', held, 'NX', its_turn(), id)
  redis.call('EXPIRE', held, math.max(1, redis.call('TTL', run)))
  redis.call('ZADD', paced_runs, 'NX', stamp(now), run_of(id))
  return 'paced'
end

local function admit(g)
  local ahead = run .. ':ahead'
  healing('HSET', ahead, group_of(id), '')
  redis.call('EXPIRE', ahead, math.max(1, redis.call('TTL', run)))
end
