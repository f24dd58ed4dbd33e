-- Delete what is known of groups of a run that is being purged, and of their trajectories. May be
-- repeated. Their results stay.
--
-- KEYS[1] run:{id}
-- ARGV[1] prefix  ARGV[2...] group ids
-- Returns how many trajectories were deleted; -1 when the run is not cancelled (any more: it was purged).
if redis.call('HGET', KEYS[1], 'state') ~= 'cancelled' then return -1 end
local n = 0
for i = 2, #ARGV do
  local group = ARGV[1] .. 'group:' .. ARGV[i]
  local g = redis.call('HMGET', group, 'size', 'planned')
  for index = 0, (tonumber(g[2] or g[1] or '') or 0) - 1 do
    n = n + redis.call('DEL', ARGV[1] .. 'traj:' .. ARGV[i] .. '.' .. index)
  end
  redis.call('DEL', group)
end
return n
